"""Rewrites of programs that know no loops: simplification by named rules, orientation, rematerialisation."""
