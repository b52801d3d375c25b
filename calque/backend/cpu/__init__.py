"""The CPU backend: LLVM code for this machine, run by native threads. See `docs/architecture.md`, "Native kernel ABI".

target -> emit (loop kernel to IR) -> llvm (object code) -> cache (disk) -> library (addresses)
link (schedule to launches) -> executable (run) over runtime (threads) and memory (pool)
"""
