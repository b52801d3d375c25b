"""From LLVM IR to object code, in other processes, and from object code to memory: what every room above stands on."""
