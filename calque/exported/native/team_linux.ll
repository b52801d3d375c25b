; Which process this is.

declare i32 @getpid()

define internal i32 @process() nounwind {
  %found = call i32 @getpid()
  ret i32 %found
}
