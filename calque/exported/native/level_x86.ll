; Asks the processor for what the levels x86-64-v3 and x86-64-v4 need (AVX, FMA, F16C, MOVBE, OSXSAVE; BMI1, AVX2, BMI2; AVX-512 F, DQ, CD, BW,
; VL), and whether the system saves these registers.

define internal i32 @level() nounwind {
entry:
  %most = call { i32, i32, i32, i32 } asm "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0, i32 0)
  %leaves = extractvalue { i32, i32, i32, i32 } %most, 0
  %modern = icmp uge i32 %leaves, 7
  br i1 %modern, label %first, label %old
first:
  %one = call { i32, i32, i32, i32 } asm "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 1, i32 0)
  %features = extractvalue { i32, i32, i32, i32 } %one, 2
  %masked = and i32 %features, 943722496
  %full = icmp eq i32 %masked, 943722496
  br i1 %full, label %second, label %old
second:
  %seven = call { i32, i32, i32, i32 } asm "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 7, i32 0)
  %wide = extractvalue { i32, i32, i32, i32 } %seven, 1
  %saved = call { i32, i32 } asm "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %state = extractvalue { i32, i32 } %saved, 0
  %v3bits = and i32 %wide, 296
  %v3has = icmp eq i32 %v3bits, 296
  %v3state = and i32 %state, 6
  %v3saved = icmp eq i32 %v3state, 6
  %v3 = and i1 %v3has, %v3saved
  %v4bits = and i32 %wide, 3489857536
  %v4has = icmp eq i32 %v4bits, 3489857536
  %v4state = and i32 %state, 230
  %v4saved = icmp eq i32 %v4state, 230
  %v4both = and i1 %v4has, %v4saved
  %v4 = and i1 %v4both, %v3
  %a = select i1 %v3, i32 1, i32 0
  %b = select i1 %v4, i32 2, i32 %a
  br label %choose
old:
  br label %choose
choose:
  %have = phi i32 [%b, %second], [0, %old]
  %place = zext i32 %have to i64
  %chosenp = getelementptr i32, ptr @chosen, i64 %place
  %found = load i32, ptr %chosenp
  ret i32 %found
}
