"""The CPU backend: LLVM code for this machine, run by native threads. See `docs/architecture.md`, "Native kernel ABI".

compile (IR to object code), text (IR as text), loops and contract (IR of kernels), code (their addresses), team (threads and memory), program (a
schedule becomes launches, which run): each of these rooms imports from those before it alone.
"""
