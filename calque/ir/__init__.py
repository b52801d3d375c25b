"""Programs as data: nodes, their scalar instruction set, their verifier, rewriting by named rules. See README.md."""
