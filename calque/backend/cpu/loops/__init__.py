"""From a loop kernel to LLVM IR."""
