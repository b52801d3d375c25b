; The threads of an instance: how many there are, and their memory (see runtime.py). What makes them is the text of `runtime_text.team_text`, or
; team_alone.ll.

; Bytes of an instance of so many threads, 0 if it cannot have them.
define i64 @NAME_threads_bytes(i32 %threads) nounwind {
  %low = icmp sge i32 %threads, 1
  %high = icmp sle i32 %threads, MOST_THREADS
  %inside = and i1 %low, %high
  %wide = sext i32 %threads to i64
  %more = sub i64 %wide, 1
  %each = mul i64 %more, EACH_THREAD
  %all = add i64 %each, MEMORY_BYTES
  %found = select i1 %inside, i64 %all, i64 0
  ret i64 %found
}

; Lays out the memory of so many threads, none of which runs: the control block with a line for each, then scratch memory of all but the first.
define internal void @lay_out(ptr %m, i32 %threads) nounwind {
entry:
  %control = load ptr, ptr %m + 72
  call void @cleared(ptr %control, i64 THREAD_BLOCK)
  %count = sext i32 %threads to i64
  store i64 %count, ptr %control + 320
  %used = call i64 @NAME_threads_bytes(i32 %threads)
  store i64 %used, ptr %m + 88
  %lines = getelementptr i8, ptr %control, i64 THREAD_BLOCK
  %room = mul i64 %count, THREAD_BYTES
  %others = getelementptr i8, ptr %lines, i64 %room
  br label %each
each:
  %k = phi i64 [0, %entry], [%k1, %each]
  %k1 = add i64 %k, 1
  %at = mul i64 %k, THREAD_BYTES
  %line = getelementptr i8, ptr %lines, i64 %at
  call void @cleared(ptr %line, i64 THREAD_BYTES)
  %before = sub i64 %k, 1
  %behind = mul i64 %before, SCRATCH_ROOM
  %other = getelementptr i8, ptr %others, i64 %behind
  %own = getelementptr i8, ptr %m, i64 SCRATCH_AT
  %first = icmp eq i64 %k, 0
  %scratch = select i1 %first, ptr %own, ptr %other
  store ptr %control, ptr %line
  store i64 %k, ptr %line + 8
  store ptr %scratch, ptr %line + 16
  %words = getelementptr i8, ptr %scratch, i64 SCRATCH_BYTES
  call void @cleared(ptr %words, i64 64)
  %more = icmp slt i64 %k1, %count
  br i1 %more, label %each, label %done
done:
  ret void
}

define internal void @cleared(ptr %memory, i64 %size) nounwind {
entry:
  br label %each
each:
  %k = phi i64 [0, %entry], [%k1, %each]
  %word = getelementptr i8, ptr %memory, i64 %k
  store i64 0, ptr %word
  %k1 = add i64 %k, 8
  %more = icmp slt i64 %k1, %size
  br i1 %more, label %each, label %done
done:
  ret void
}

; Threads do not follow a process into its child: there the instance has the caller's alone.
define internal ptr @control_of(ptr %m) nounwind {
entry:
  %control = load ptr, ptr %m + 72
  %threads = load i64, ptr %control + 320
  %several = icmp sgt i64 %threads, 1
  br i1 %several, label %ask, label %done
ask:
  %owner = load i32, ptr %m + 28
  %process = call i32 @process()
  %same = icmp eq i32 %owner, %process
  br i1 %same, label %done, label %child
child:
  store i64 1, ptr %control + 320
  br label %done
done:
  ret ptr %control
}

; Launches on the threads of an instance, or on the caller's if they are little work; also if they are brief and other threads of the machine have
; kept those of the instance waiting, as `Runtime` in team/runtime.py does.
define internal void @spread(ptr %m, ptr %launches, i64 %count, ptr %words, i64 %whose) nounwind {
entry:
  %little = icmp eq i64 %whose, ALONE
  br i1 %little, label %one, label %several
several:
  %control = call ptr @control_of(ptr %m)
  %brief = icmp eq i64 %whose, BRIEF
  br i1 %brief, label %crowded, label %all
crowded:
  %until = load i64, ptr %m + 96
  %never = icmp eq i64 %until, 0
  br i1 %never, label %watched, label %look
look:
  %now = call i64 @nanoseconds()
  %resting = icmp slt i64 %now, %until
  br i1 %resting, label %one, label %watched
one:
  %own = load ptr, ptr %m + 72
  call void @calque_run(ptr %own, ptr %launches, i64 %count, ptr %words, i64 1)
  ret void
all:
  call void @calque_run(ptr %control, ptr %launches, i64 %count, ptr %words, i64 0)
  ret void
watched:
  %stallsp = getelementptr i8, ptr %control, i64 STALLS
  %before = load atomic i64, ptr %stallsp monotonic, align 8
  call void @calque_run(ptr %control, ptr %launches, i64 %count, ptr %words, i64 0)
  %after = load atomic i64, ptr %stallsp monotonic, align 8
  %smooth = icmp eq i64 %before, %after
  br i1 %smooth, label %done, label %kept
kept:
  call void @judge(ptr %m)
  ret void
done:
  ret void
}

; The threads were kept waiting. Two such runs soon behind each other let them rest, for twice as long where one comes as soon as a rest is over.
define internal void @judge(ptr %m) nounwind {
  %now = call i64 @nanoseconds()
  %last = load i64, ptr %m + 112
  %since = sub i64 %now, %last
  %again = icmp slt i64 %since, SOON
  %rest = load i64, ptr %m + 104
  %twice = shl i64 %rest, 1
  %none = icmp eq i64 %rest, 0
  %longer = select i1 %none, i64 FIRST_REST, i64 %twice
  %most = icmp sgt i64 %longer, LONGEST_REST
  %bounded = select i1 %most, i64 LONGEST_REST, i64 %longer
  %new = select i1 %again, i64 %bounded, i64 0
  store i64 %new, ptr %m + 104
  %until = add i64 %now, %new
  store i64 %until, ptr %m + 96
  store i64 %until, ptr %m + 112
  ret void
}

; Waits for the threads of an instance to end.
define internal void @end_threads(ptr %m) nounwind {
  %control = call ptr @control_of(ptr %m)
  call void @calque_stop(ptr %control)
  ret void
}

define i32 @NAME_threads(ptr %m) nounwind {
entry:
  %nobody = icmp eq ptr %m, null
  br i1 %nobody, label %none, label %look
look:
  %magic = load i64, ptr %m
  %ours = icmp eq i64 %magic, MAGIC
  br i1 %ours, label %found, label %none
found:
  %control = call ptr @control_of(ptr %m)
  %threads = load i64, ptr %control + 320
  %count = trunc i64 %threads to i32
  ret i32 %count
none:
  ret i32 0
}

define i32 @NAME_set_threads(ptr %m, i32 %threads) nounwind {
entry:
  %nobody = icmp eq ptr %m, null
  br i1 %nobody, label %fail_null, label %look
look:
  %magic = load i64, ptr %m
  %ours = icmp eq i64 %magic, MAGIC
  br i1 %ours, label %take, label %fail_instance
take:
  %busyp = getelementptr i8, ptr %m, i64 24
  %before = atomicrmw xchg ptr %busyp, i32 1 acquire
  %idle = icmp eq i32 %before, 0
  br i1 %idle, label %known, label %fail_busy
known:
  %needed = call i64 @NAME_threads_bytes(i32 %threads)
  %possible = icmp ne i64 %needed, 0
  br i1 %possible, label %room, label %leave
room:
  %given = load i64, ptr %m + 80
  %fits = icmp uge i64 %given, %needed
  br i1 %fits, label %change, label %leave
change:
  %running = call i32 @NAME_threads(ptr %m)
  %same = icmp eq i32 %running, %threads
  br i1 %same, label %leave, label %start
start:
  call void @end_threads(ptr %m)
  call void @lay_out(ptr %m, i32 %threads)
  %control = load ptr, ptr %m + 72
  %started = call i64 @calque_start(ptr %control)
  store i64 %started, ptr %control + 320
  %process = call i32 @process()
  store i32 %process, ptr %m + 28
  %count = trunc i64 %started to i32
  %all = icmp eq i32 %count, %threads
  %found = select i1 %all, i32 0, i32 C_FEWER
  br label %leave
leave:
  %code = phi i32 [C_THREADS, %known], [C_MEMORY, %room], [0, %change], [%found, %start]
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %done, label %tell
tell:
  %text = call ptr @NAME_text(i32 %code)
  store ptr %text, ptr %m + 16
  br label %done
done:
  store atomic i32 0, ptr %busyp release, align 4
  ret i32 %code
fail_null:
  ret i32 C_NULL
fail_instance:
  ret i32 C_INSTANCE
fail_busy:
  ret i32 C_BUSY
}
