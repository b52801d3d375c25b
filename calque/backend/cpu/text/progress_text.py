"""How far a run of a program has come, for threads that wait for one of its values, as LLVM IR (see `progress.py`).

Three words per run: launches that are left, the highest number of them that somebody waits for (-1: nobody waits), and the number of times that
somebody was woken, on which they sleep (futex). The thread that runs the program writes the first at each barrier behind launches; it makes a system
call only when what somebody waits for is there.
"""

from __future__ import annotations

_TEXT = """
define void @calque_tell(ptr %progress, i64 %left) nounwind {
entry:
  store atomic i64 %left, ptr %progress seq_cst, align 8
  %wanted = load atomic i64, ptr %progress + 8 seq_cst, align 8
  %early = icmp sgt i64 %left, %wanted
  br i1 %early, label %done, label %wake
wake:
  %wantedp = getelementptr i8, ptr %progress, i64 8
  %old = atomicrmw xchg ptr %wantedp, i64 -1 seq_cst
  %wokenp = getelementptr i8, ptr %progress, i64 16
  %count = atomicrmw add ptr %wokenp, i32 1 seq_cst
  %s = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %wokenp, i32 129, i32 2147483647)
  br label %done
done:
  ret void
}

; Wait until at most `limit` launches are left, for some nanoseconds (less than a second) or until a signal comes. Whether no more are left.
define i64 @calque_await(ptr %progress, i64 %limit, i64 %nanoseconds) nounwind {
entry:
  %time = alloca [2 x i64]
  %left = load atomic i64, ptr %progress seq_cst, align 8
  %there = icmp sle i64 %left, %limit
  br i1 %there, label %ready, label %ask
ask:
  %wokenp = getelementptr i8, ptr %progress, i64 16
  %woken = load atomic i32, ptr %wokenp seq_cst, align 4
  %wantedp = getelementptr i8, ptr %progress, i64 8
  %others = atomicrmw max ptr %wantedp, i64 %limit seq_cst
  %again = load atomic i64, ptr %progress seq_cst, align 8
  %soon = icmp sle i64 %again, %limit
  br i1 %soon, label %ready, label %sleep
sleep:
  store i64 0, ptr %time
  store i64 %nanoseconds, ptr %time + 8
  %s = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %wokenp, i32 128, i32 %woken, ptr %time)
  %now = load atomic i64, ptr %progress seq_cst, align 8
  %over = icmp sle i64 %now, %limit
  br i1 %over, label %ready, label %waiting
waiting:
  ret i64 0
ready:
  ret i64 1
}
"""


def progress_text() -> str:
    """The functions."""
    return _TEXT
