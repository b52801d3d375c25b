; Weights in a file whose bytes the caller has: a magic number, the sum of all words behind 64 bytes, the weights.

define internal ptr @weights_of(ptr %weights, i64 %size) nounwind {
entry:
  %none = icmp eq ptr %weights, null
  br i1 %none, label %wrong, label %look
look:
  %address = ptrtoint ptr %weights to i64
  %rest = and i64 %address, 7
  %aligned = icmp eq i64 %rest, 0
  %whole = icmp eq i64 %size, FILE_BYTES
  %fits = and i1 %aligned, %whole
  br i1 %fits, label %named, label %wrong
named:
  %magic = load i64, ptr %weights
  %ours = icmp eq i64 %magic, FILE_MAGIC
  %sum = load i64, ptr %weights + 8
  %same = icmp eq i64 %sum, FILE_SUM
  %both = and i1 %ours, %same
  br i1 %both, label %summing, label %wrong
summing:
  %k = phi i64 [8, %named], [%k1, %summing]
  %h = phi i64 [0, %named], [%h2, %summing]
  %wordp = getelementptr i64, ptr %weights, i64 %k
  %word = load i64, ptr %wordp
  %h1 = mul i64 %h, SUM_FACTOR
  %h2 = add i64 %h1, %word
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, FILE_WORDS
  br i1 %more, label %summing, label %summed
summed:
  %sound = icmp eq i64 %h2, FILE_SUM
  br i1 %sound, label %right, label %wrong
right:
  %found = getelementptr i8, ptr %weights, i64 64
  ret ptr %found
wrong:
  ret ptr null
}
