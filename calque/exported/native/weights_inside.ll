; Weights in the library: whatever is given is not looked at.

define internal ptr @weights_of(ptr %weights, i64 %size) nounwind {
  ret ptr @blob
}
