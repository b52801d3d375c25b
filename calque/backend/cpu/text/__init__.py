"""LLVM IR as text: the writer of loops, and the native functions of the runtime, which are written by hand."""
