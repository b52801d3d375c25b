"""The native launcher as LLVM IR: worker threads, barrier, and the loop over the launches of a program.

Layout of the control block (bytes; every hot word has its own cache line):

    0    i32  ticket: number of what was posted last; workers park on it (futex)
    64   i32  workers parked, or about to park
    128  i32  barrier: arrivals           (the object handed to kernels as `barrier`)
    192  i32  barrier: generation
    256  ptr  job: launches;  264 i64 their number;  272 ptr argument words;  280 i32 stop
    288  ptr progress of the job (`progress_text.py`), or null
    320  i64  threads, the caller included
    384  per thread (64 bytes each): ptr control, i64 number, ptr scratch, i64 pthread handle

A launch is three words: function address, offset of its arguments in the argument words (bytes), flags. Flags: 1 if a barrier must follow; 2 if the
next launch is a loop over the result of this one, part by part (`follow.py`). The last launch of
a job is always followed by a barrier, so that when the caller returns every worker has finished with the job's memory.
"""

from __future__ import annotations

import platform

from calque.backend.cpu.compile.target import SCRATCH_BYTES
from calque.backend.cpu.text.address_text import with_addresses
from calque.backend.cpu.text.progress_text import progress_text

THREAD_BLOCK = 384
THREAD_BYTES = 64
BARRIER = 128
PROGRESS = 288
STALLS = 296  # how often a thread has waited for another one for longer than STALLED
SPIN_IDLE = 3000
SPIN_BARRIER = 4000  # looks, after which a thread that waits lets others of the machine run in between
STALLED = 1_500_000  # nanoseconds: less than the operating system takes a thread away for, more than short programs take
LOCAL_WORDS = 8
BEHIND_SCRATCH = 4096
"""Bytes behind a thread's scratch memory: the words of `contract/finish.py`, from `LOCAL_WORDS` on the arguments of a loop on part of a result."""

_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_SYSCALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_PAUSE = {
    "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
    "riscv64": ('fence syncscope("singlethread") seq_cst', ""),  # not all have an instruction for it
}

_LAUNCHES = """
define internal void @launches(i64 %number, i64 %threads, ptr %barrier, ptr %scratch, ptr %launches, i64 %count, ptr %words)
nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %row = mul i64 %i, 24
  %launch = getelementptr i8, ptr %launches, i64 %row
  %function = load ptr, ptr %launch
  %offset = load i64, ptr %launch + 8
  %flag = load i64, ptr %launch + 16
  %args = getelementptr i8, ptr %words, i64 %offset
  %final = add i64 %i, 1
  %complete = icmp slt i64 %final, %count
  %followed = and i64 %flag, 2
  %paired = icmp ne i64 %followed, 0
  %both = and i1 %paired, %complete
  br i1 %both, label %together, label %one
one:
  call void %function(i64 %number, i64 %threads, ptr %barrier, ptr %scratch, ptr %args)
  br label %finished
together:
  %slot = getelementptr i8, ptr %scratch, i64 SCRATCH_BYTES
  %frow = mul i64 %final, 24
  %flaunch = getelementptr i8, ptr %launches, i64 %frow
  %ffunction = load ptr, ptr %flaunch
  %foffset = load i64, ptr %flaunch + 8
  %fargs = getelementptr i8, ptr %words, i64 %foffset
  %loopp = getelementptr i64, ptr %slot, i64 1
  store ptr %ffunction, ptr %loopp
  %loopargsp = getelementptr i64, ptr %slot, i64 2
  store ptr %fargs, ptr %loopargsp
  %begunp = getelementptr i64, ptr %slot, i64 3
  store i64 0, ptr %begunp
  store ptr @calque_finish, ptr %slot
  call void %function(i64 %number, i64 %threads, ptr %barrier, ptr %scratch, ptr %args)
  %begun = load i64, ptr %begunp
  store i64 0, ptr %begunp
  store ptr null, ptr %slot
  %finished_already = icmp ne i64 %begun, 0
  br i1 %finished_already, label %lastrow, label %afterwards
afterwards:
  call void @calque_barrier(ptr %barrier, i64 %threads)
  call void %ffunction(i64 %number, i64 %threads, ptr %barrier, ptr %scratch, ptr %fargs)
  br label %lastrow
lastrow:
  %lflag = load i64, ptr %flaunch + 16
  br label %finished
finished:
  %at = phi i64 [%i, %one], [%final, %lastrow]
  %sign = phi i64 [%flag, %one], [%lflag, %lastrow]
  %i1 = add i64 %at, 1
  %last = icmp eq i64 %i1, %count
  %low1 = and i64 %sign, 1
  %ordered = icmp ne i64 %low1, 0
  %must = or i1 %last, %ordered
  br i1 %must, label %sync, label %next
sync:
  call void @calque_barrier(ptr %barrier, i64 %threads)
  %caller = icmp eq i64 %number, 0
  br i1 %caller, label %look, label %next
look:
  %progress = load ptr, ptr %barrier + PROGRESS_BEHIND
  %unseen = icmp eq ptr %progress, null
  br i1 %unseen, label %next, label %tell
tell:
  %left = sub i64 %count, %i1
  call void @calque_tell(ptr %progress, i64 %left)
  br label %next
next:
  br label %head
done:
  ret void
}

; A part of a contraction's result is complete: the loop behind it, on this part. `slot`: behind the scratch memory of this thread. The three
; words before the loop's arguments: how many operands, accesses and words these have. Behind them, for each access: the position of its offset
; and its steps.
define internal void @calque_finish(ptr %slot, i64 %batch, i64 %row, i64 %rows, i64 %column, i64 %columns) nounwind {
entry:
  %loopp = getelementptr i64, ptr %slot, i64 1
  %loop = load ptr, ptr %loopp
  %argsp = getelementptr i64, ptr %slot, i64 2
  %args = load ptr, ptr %argsp
  %operands = load i64, ptr %args[-3]
  %accesses = load i64, ptr %args[-2]
  %count = load i64, ptr %args[-1]
  %local = getelementptr i64, ptr %slot, i64 LOCAL_WORDS
  br label %copy
copy:
  %i = phi i64 [0, %entry], [%i1, %copybody]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %copybody, label %extents
copybody:
  %word = load i64, ptr %args[%i]
  store i64 %word, ptr %local[%i]
  %i1 = add i64 %i, 1
  br label %copy
extents:
  %e0 = getelementptr i64, ptr %local, i64 %operands
  store i64 1, ptr %e0
  store i64 %rows, ptr %e0[1]
  store i64 %columns, ptr %e0[2]
  %table = getelementptr i64, ptr %args, i64 %count
  br label %shift
shift:
  %k = phi i64 [0, %extents], [%k1, %shiftbody]
  %another = icmp slt i64 %k, %accesses
  br i1 %another, label %shiftbody, label %ready
shiftbody:
  %k4 = mul i64 %k, 4
  %entryp = getelementptr i64, ptr %table, i64 %k4
  %position = load i64, ptr %entryp
  %s0 = load i64, ptr %entryp[1]
  %s1 = load i64, ptr %entryp[2]
  %s2 = load i64, ptr %entryp[3]
  %m0 = mul i64 %s0, %batch
  %m1 = mul i64 %s1, %row
  %m2 = mul i64 %s2, %column
  %a1 = add i64 %m0, %m1
  %a2 = add i64 %a1, %m2
  %placep = getelementptr i64, ptr %local, i64 %position
  %old = load i64, ptr %placep
  %new = add i64 %old, %a2
  store i64 %new, ptr %placep
  %k1 = add i64 %k, 1
  br label %shift
ready:
  call void %loop(i64 0, i64 1, ptr null, ptr null, ptr %local)
  ret void
}
"""

_TEAM = """
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
DECLARE_PAUSE

define void @calque_barrier(ptr %b, i64 %threads) nounwind {
entry:
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %generation = getelementptr i8, ptr %b, i64 64
  %g = load atomic i32, ptr %generation acquire, align 4
  %old = atomicrmw add ptr %b, i32 1 acq_rel
  %n = trunc i64 %threads to i32
  %others = sub i32 %n, 1
  %last = icmp eq i32 %old, %others
  br i1 %last, label %release, label %spin
release:
  store atomic i32 0, ptr %b monotonic, align 4
  %next = add i32 %g, 1
  store atomic i32 %next, ptr %generation release, align 4
  ret void
spin:
  %turn = phi i32 [0, %arrive], [%turn1, %pause]
  %now = load atomic i32, ptr %generation acquire, align 4
  %ready = icmp ne i32 %now, %g
  br i1 %ready, label %done, label %wait
wait:
  %long = icmp uge i32 %turn, SPIN_BARRIER
  br i1 %long, label %yield, label %pause
pause:
  PAUSE
  %turn1 = add i32 %turn, 1
  br label %spin
yield:
  %stalls = getelementptr i8, ptr %b, i64 STALLS_BEHIND
  call void @yielding(ptr %generation, i32 %g, ptr %stalls)
  ret void
done:
  ret void
}

; Waits for another generation, while other threads of the machine run; counts it if that takes long.
define internal void @yielding(ptr %generation, i32 %g, ptr %stalls) nounwind noinline {
entry:
  %start = call i64 @nanoseconds()
  br label %look
look:
  %ignored = call i32 @sched_yield()
  %now = load atomic i32, ptr %generation acquire, align 4
  %ready = icmp ne i32 %now, %g
  br i1 %ready, label %over, label %look
over:
  %end = call i64 @nanoseconds()
  %took = sub i64 %end, %start
  %long = icmp sgt i64 %took, STALLED
  br i1 %long, label %count, label %done
count:
  %before = atomicrmw add ptr %stalls, i64 1 monotonic
  br label %done
done:
  ret void
}

define internal i64 @nanoseconds() nounwind noinline {
entry:
  %time = alloca [2 x i64], align 8
  %ignored = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %restp = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %restp
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

define internal void @job(ptr %thread) nounwind {
entry:
  %control = load ptr, ptr %thread
  %number = load i64, ptr %thread + 8
  %scratch = load ptr, ptr %thread + 16
  %barrier = getelementptr i8, ptr %control, i64 128
  %launches = load ptr, ptr %control + 256
  %count = load i64, ptr %control + 264
  %words = load ptr, ptr %control + 272
  %threads = load i64, ptr %control + 320
  call void @launches(i64 %number, i64 %threads, ptr %barrier, ptr %scratch, ptr %launches, i64 %count, ptr %words)
  ret void
}

LAUNCHES
define internal ptr @worker(ptr %thread) nounwind {
entry:
  %control = load ptr, ptr %thread
  %parked = getelementptr i8, ptr %control, i64 64
  %stopp = getelementptr i8, ptr %control, i64 280
  %start = load i32, ptr %thread + 32
  br label %idle
idle:
  %seen = phi i32 [%start, %entry], [%ticket, %job]
  br label %spin
spin:
  %turn = phi i32 [0, %idle], [%turn1, %pause], [0, %woken]
  %ticket = load atomic i32, ptr %control acquire, align 4
  %new = icmp ne i32 %ticket, %seen
  br i1 %new, label %leave, label %wait
wait:
  %long = icmp uge i32 %turn, SPIN_IDLE
  br i1 %long, label %park, label %pause
pause:
  PAUSE
  %turn1 = add i32 %turn, 1
  br label %spin
park:
  %p0 = atomicrmw add ptr %parked, i32 1 seq_cst
  %s0 = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %control, i32 128, i32 %seen, ptr null)
  %p1 = atomicrmw sub ptr %parked, i32 1 seq_cst
  br label %woken
woken:
  br label %spin
leave:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %stopping = icmp ne i32 %stop, 0
  br i1 %stopping, label %done, label %job
job:
  call void @job(ptr %thread)
  br label %idle
done:
  ret ptr null
}

define internal void @announce(ptr %control) nounwind {
entry:
  %t = atomicrmw add ptr %control, i32 1 seq_cst
  %n = load atomic i32, ptr %control + 64 seq_cst, align 4
  %any = icmp ne i32 %n, 0
  br i1 %any, label %wake, label %done
wake:
  %s = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %control, i32 129, i32 2147483647)
  br label %done
done:
  ret void
}

define void @calque_run(ptr %control, ptr %launches, i64 %count, ptr %words, i64 %alone) nounwind {
entry:
  %self = getelementptr i8, ptr %control, i64 THREAD_BLOCK
  %single = icmp ne i64 %alone, 0
  br i1 %single, label %serial, label %together
serial:
  %scratch = load ptr, ptr %self + 16
  %barrier = getelementptr i8, ptr %control, i64 128
  call void @launches(i64 0, i64 1, ptr %barrier, ptr %scratch, ptr %launches, i64 %count, ptr %words)
  ret void
together:
  store ptr %launches, ptr %control + 256
  store i64 %count, ptr %control + 264
  store ptr %words, ptr %control + 272
  %threads = load i64, ptr %control + 320
  %shared = icmp sgt i64 %threads, 1
  br i1 %shared, label %post, label %go
post:
  call void @announce(ptr %control)
  br label %go
go:
  call void @job(ptr %self)
  ret void
}

define i64 @calque_start(ptr %control) nounwind {
entry:
  %threads = load i64, ptr %control + 320
  br label %head
head:
  %i = phi i64 [1, %entry], [%i1, %ok]
  %more = icmp slt i64 %i, %threads
  br i1 %more, label %body, label %done
body:
  %row = mul i64 %i, 64
  %at = add i64 %row, THREAD_BLOCK
  %thread = getelementptr i8, ptr %control, i64 %at
  %handle = getelementptr i8, ptr %thread, i64 24
  %r = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %thread)
  %bad = icmp ne i32 %r, 0
  br i1 %bad, label %done, label %ok
ok:
  %i1 = add i64 %i, 1
  br label %head
done:
  ret i64 %i
}

define void @calque_stop(ptr %control) nounwind {
entry:
  store atomic i32 1, ptr %control + 280 release, align 4
  call void @announce(ptr %control)
  %threads = load i64, ptr %control + 320
  br label %head
head:
  %i = phi i64 [1, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %threads
  br i1 %more, label %body, label %done
body:
  %row = mul i64 %i, 64
  %at = add i64 %row, THREAD_HANDLE
  %handle = load i64, ptr %control + %at
  %r = call i32 @pthread_join(i64 %handle, ptr null)
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}

"""

_STEP = """
; Addresses of array data: words[position[i]] = *(objects[source[i]] + 16) + offset[i]
define void @calque_patch(ptr %words, i64 %count, ptr %positions, ptr %sources, ptr %offsets, ptr %objects) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %p = load i64, ptr %positions[%i]
  %s = load i64, ptr %sources[%i]
  %o = load i64, ptr %offsets[%i]
  %object = load ptr, ptr %objects[%s]
  %data = load i64, ptr %object + 16
  %address = add i64 %data, %o
  store i64 %address, ptr %words[%p]
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}

; One run of a program: addresses, floating scalars, launches. `request` holds the words named in `REQUEST`; `objects` are the arrays, `scalars` is a
; Python list. Returns 1, and runs nothing, if a scalar that should be a Python float is something else. The launches run without the interpreter's
; lock if `save` and `restore` (of the thread's state) are there.
define internal i64 @step(ptr %request, ptr %objects, ptr %scalars) nounwind {
entry:
  %wordsp = getelementptr i64, ptr %request, i64 3
  %words = load ptr, ptr %wordsp
  %count = load i64, ptr %request[5]
  %positionsp = getelementptr i64, ptr %request, i64 6
  %positions = load ptr, ptr %positionsp
  %sourcesp = getelementptr i64, ptr %request, i64 7
  %sources = load ptr, ptr %sourcesp
  %offsetsp = getelementptr i64, ptr %request, i64 8
  %offsets = load ptr, ptr %offsetsp
  %floats = load i64, ptr %request[9]
  %atp = getelementptr i64, ptr %request, i64 10
  %at = load ptr, ptr %atp
  %leavesp = getelementptr i64, ptr %request, i64 11
  %leaves = load ptr, ptr %leavesp
  %type = load i64, ptr %request[12]
  %values = load ptr, ptr %scalars + 24
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %convert]
  %more = icmp slt i64 %i, %floats
  br i1 %more, label %body, label %patch
body:
  %leaf = load i64, ptr %leaves[%i]
  %number = load ptr, ptr %values[%leaf]
  %class = load i64, ptr %number + 8
  %good = icmp eq i64 %class, %type
  br i1 %good, label %convert, label %odd
convert:
  %bits = load i64, ptr %number + 16
  %place = load i64, ptr %at[%i]
  store i64 %bits, ptr %words[%place]
  %i1 = add i64 %i, 1
  br label %head
odd:
  ret i64 1
patch:
  call void @calque_patch(ptr %words, i64 %count, ptr %positions, ptr %sources, ptr %offsets, ptr %objects)
  %control = load ptr, ptr %request
  %launchesp = getelementptr i64, ptr %request, i64 1
  %launches = load ptr, ptr %launchesp
  %launched = load i64, ptr %request[2]
  %alone = load i64, ptr %request[4]
  %savep = getelementptr i64, ptr %request, i64 13
  %save = load ptr, ptr %savep
  %keep = icmp eq ptr %save, null
  br i1 %keep, label %kept, label %released
kept:
  call void @calque_run(ptr %control, ptr %launches, i64 %launched, ptr %words, i64 %alone)
  ret i64 0
released:
  %state = call ptr %save()
  %progressp = getelementptr i64, ptr %request, i64 15
  %progress = load ptr, ptr %progressp
  store ptr %progress, ptr %control + PROGRESS_AT
  call void @calque_run(ptr %control, ptr %launches, i64 %launched, ptr %words, i64 %alone)
  store ptr null, ptr %control + PROGRESS_AT
  %restorep = getelementptr i64, ptr %request, i64 14
  %restore = load ptr, ptr %restorep
  call void %restore(ptr %state)
  ret i64 0
}

; The same as a function that Python calls with (arrays, scalars), bound to the array of the request: what is returned, a new reference, is
; the first list, or the second if nothing ran.
define ptr @calque_step(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %request = load ptr, ptr %self + 16
  %arrays = load ptr, ptr %arguments
  %scalars = load ptr, ptr %arguments + 8
  %objects = load ptr, ptr %arrays + 24
  %odd = call i64 @step(ptr %request, ptr %objects, ptr %scalars)
  %failed = icmp ne i64 %odd, 0
  %result = select i1 %failed, ptr %scalars, ptr %arrays
  %references = load i64, ptr %result
  %more = add i64 %references, 1
  store i64 %more, ptr %result
  ret ptr %result
}
"""

REQUEST = (
    "control", "launches", "count", "words", "alone",  # as for calque_run
    "patches", "positions", "sources", "offsets",  # as for calque_patch
    "floats", "float_positions", "float_leaves", "float_type",  # words[float_positions[i]] = scalars[float_leaves[i]]
    "save", "restore",  # functions that give the interpreter's lock away and take it back, or 0
    "progress",  # what the run tells how far it has come, or 0
)  # fmt: skip
"""What the words of a request of `calque_step` say."""

ENTRY_POINTS = (
    "calque_barrier", "calque_run", "calque_start", "calque_stop", "calque_patch", "calque_step", "calque_tell", "calque_await",
)  # fmt: skip


_NUMBERS = {
    "SPIN_IDLE": SPIN_IDLE, "SPIN_BARRIER": SPIN_BARRIER, "STALLS_BEHIND": STALLS - BARRIER, "STALLED": STALLED,
    "SCRATCH_BYTES": SCRATCH_BYTES, "LOCAL_WORDS": LOCAL_WORDS,
    "THREAD_BLOCK": THREAD_BLOCK, "THREAD_HANDLE": THREAD_BLOCK + 24, "PROGRESS_AT": PROGRESS, "PROGRESS_BEHIND": PROGRESS - BARRIER,
}  # fmt: skip


def launches_text() -> str:
    """The loop over the launches of a program alone, for programs that run elsewhere: `@launches` and what it calls but `@calque_barrier` and
    `@calque_tell`. Behind the barrier's 192 bytes it wants no progress."""
    return with_addresses(_numbered(_LAUNCHES))


def team_text(machine: str) -> str:
    """Threads of Linux with all that they run but `@calque_tell`: `@calque_start`, `@calque_stop`, `@calque_run`, `@calque_barrier`."""
    return with_addresses(_numbered(_of_machine(_TEAM.replace("LAUNCHES\n", _LAUNCHES, 1), machine)))


def module_text() -> str:
    """The runtime for this machine's architecture."""
    machine = platform.machine().lower()
    return team_text(machine) + with_addresses(_numbered(_of_machine(_STEP + progress_text(), machine)))


def _of_machine(text: str, machine: str) -> str:
    machine = _NAMES.get(machine, machine)
    pause, declaration = _PAUSE[machine]
    return text.replace("DECLARE_PAUSE", declaration).replace("PAUSE", pause).replace("FUTEX", str(_SYSCALL[machine]))


def _numbered(text: str) -> str:
    for name, number in _NUMBERS.items():
        text = text.replace(name, str(number))
    return text
