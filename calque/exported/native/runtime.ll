; The functions of a library: see runtime.py. Names in capitals are numbers that tables.py fills in.

%spec = type { ptr, i32, i32, ptr }
%signature = type { ptr, ptr, i32, i32, ptr, ptr }
%tensor = type { ptr, ptr, ptr, i32, i32 }
%launch = type { ptr, i64, i64 }
%patch = type { i64, i64, i64 }
%copy = type { i64, i64, i64, i64, i64 }
%check = type { i64, i64, ptr }
%argument = type { i64, i64, [6 x ptr] }
%program = type { ptr, ptr, i64, i64, ptr, i64, i64, ptr, i64, ptr, i64, ptr, i64, ptr, i64, i64 }

declare void @llvm.memmove.p0.p0.iPTR(ptr, ptr, iPTR, i1)

define internal void @calque_tell(ptr %progress, i64 %left) nounwind {
  ret void
}

; What is wrong with a tensor: its code, or 0.
define internal i32 @tensor_fault(ptr %t, ptr %spec, ptr %argument) nounwind {
entry:
  %data = load ptr, ptr %t
  %bytes = load i64, ptr %argument
  %dtypep = getelementptr %tensor, ptr %t, i64 0, i32 3
  %dtype = load i32, ptr %dtypep
  %wantedp = getelementptr %spec, ptr %spec, i64 0, i32 1
  %wanted = load i32, ptr %wantedp
  %same = icmp eq i32 %dtype, %wanted
  br i1 %same, label %dims, label %fault_dtype
dims:
  %ndimp = getelementptr %tensor, ptr %t, i64 0, i32 4
  %ndim = load i32, ptr %ndimp
  %wantedndimp = getelementptr %spec, ptr %spec, i64 0, i32 2
  %wantedndim = load i32, ptr %wantedndimp
  %samedims = icmp eq i32 %ndim, %wantedndim
  br i1 %samedims, label %shapes, label %fault_shape
shapes:
  %shapep = getelementptr %tensor, ptr %t, i64 0, i32 1
  %shape = load ptr, ptr %shapep
  %stridesp = getelementptr %tensor, ptr %t, i64 0, i32 2
  %strides = load ptr, ptr %stridesp
  %wantedshapep = getelementptr %spec, ptr %spec, i64 0, i32 3
  %wantedshape = load ptr, ptr %wantedshapep
  %count = sext i32 %ndim to i64
  %some = icmp sgt i64 %count, 0
  %noshape = icmp eq ptr %shape, null
  %unknown = and i1 %some, %noshape
  br i1 %unknown, label %fault_null, label %loop
loop:
  %k = phi i64 [%count, %shapes], [%k1, %next]
  %dense = phi i64 [1, %shapes], [%dense1, %next]
  %more = icmp sgt i64 %k, 0
  br i1 %more, label %body, label %memory
body:
  %k1 = sub i64 %k, 1
  %sizep = getelementptr i64, ptr %shape, i64 %k1
  %size = load i64, ptr %sizep
  %wantedsizep = getelementptr i64, ptr %wantedshape, i64 %k1
  %wantedsize = load i64, ptr %wantedsizep
  %samesize = icmp eq i64 %size, %wantedsize
  br i1 %samesize, label %stride, label %fault_shape
stride:
  %dense1 = mul i64 %dense, %size
  %nostrides = icmp eq ptr %strides, null
  %one = icmp sle i64 %size, 1
  %free = or i1 %nostrides, %one
  br i1 %free, label %next, label %compare
compare:
  %stridep = getelementptr i64, ptr %strides, i64 %k1
  %step = load i64, ptr %stridep
  %isdense = icmp eq i64 %step, %dense
  %empty = icmp eq i64 %bytes, 0
  %fine = or i1 %isdense, %empty
  br i1 %fine, label %next, label %fault_layout
next:
  br label %loop
memory:
  %nothing = icmp eq i64 %bytes, 0
  br i1 %nothing, label %good, label %there
there:
  %nodata = icmp eq ptr %data, null
  br i1 %nodata, label %fault_null, label %aligned
aligned:
  %itemp = getelementptr %argument, ptr %argument, i64 0, i32 1
  %item = load i64, ptr %itemp
  %address = ptrtoint ptr %data to i64
  %mask = sub i64 %item, 1
  %rest = and i64 %address, %mask
  %whole = icmp eq i64 %rest, 0
  br i1 %whole, label %good, label %fault_aligned
good:
  ret i32 0
fault_dtype:
  ret i32 C_DTYPE
fault_shape:
  ret i32 C_SHAPE
fault_null:
  ret i32 C_NULL
fault_layout:
  ret i32 C_LAYOUT
fault_aligned:
  ret i32 C_ALIGNED
}

; Looks at the arguments and notes where their data is: 0, or the code of what is wrong, whose text the instance then has.
define internal i32 @bind(ptr %m, ptr %specs, ptr %arguments, ptr %tensors, i64 %count, ptr %bases) nounwind {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %kept]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %k1 = add i64 %k, 1
  %t = getelementptr %tensor, ptr %tensors, i64 %k
  %spec = getelementptr %spec, ptr %specs, i64 %k
  %argument = getelementptr %argument, ptr %arguments, i64 %k
  %fault = call i32 @tensor_fault(ptr %t, ptr %spec, ptr %argument)
  %good = icmp eq i32 %fault, 0
  br i1 %good, label %kept, label %fail
kept:
  %data = load ptr, ptr %t
  %place = getelementptr i64, ptr %bases, i64 %k
  store ptr %data, ptr %place
  br label %loop
fail:
  %code = call i32 @blame(ptr %m, ptr %argument, i32 %fault)
  ret i32 %code
done:
  ret i32 0
}

define internal i32 @blame(ptr %m, ptr %argument, i32 %code) nounwind {
entry:
  %isnull = icmp eq i32 %code, C_NULL
  %isaligned = icmp eq i32 %code, C_ALIGNED
  %from = sub i32 %code, C_DTYPE
  %a = select i1 %isnull, i32 4, i32 %from
  %b = select i1 %isaligned, i32 5, i32 %a
  %place = sext i32 %b to i64
  %textp = getelementptr %argument, ptr %argument, i64 0, i32 2, i64 %place
  %text = load ptr, ptr %textp
  store ptr %text, ptr %m + 16
  ret i32 %code
}

; Outputs must not share memory with an input or another output: the number behind the first that does, or 0.
define internal i64 @shared(ptr %arguments, ptr %bases, i64 %inputs, i64 %all) nounwind {
entry:
  br label %outer
outer:
  %k = phi i64 [%inputs, %entry], [%k1, %outernext]
  %more = icmp slt i64 %k, %all
  br i1 %more, label %start, label %none
start:
  %k1 = add i64 %k, 1
  %placek = getelementptr i64, ptr %bases, i64 %k
  %datak = load ptr, ptr %placek
  %lowk = ptrtoint ptr %datak to i64
  %argk = getelementptr %argument, ptr %arguments, i64 %k
  %bytesk = load i64, ptr %argk
  %highk = add i64 %lowk, %bytesk
  br label %inner
inner:
  %j = phi i64 [0, %start], [%j1, %innernext]
  %before = icmp slt i64 %j, %k
  br i1 %before, label %look, label %outernext
look:
  %j1 = add i64 %j, 1
  %placej = getelementptr i64, ptr %bases, i64 %j
  %dataj = load ptr, ptr %placej
  %lowj = ptrtoint ptr %dataj to i64
  %argj = getelementptr %argument, ptr %arguments, i64 %j
  %bytesj = load i64, ptr %argj
  %highj = add i64 %lowj, %bytesj
  %a = icmp ult i64 %lowk, %highj
  %b = icmp ult i64 %lowj, %highk
  %c = and i1 %a, %b
  %d = icmp ne i64 %bytesj, 0
  %e = icmp ne i64 %bytesk, 0
  %f = and i1 %d, %e
  %both = and i1 %c, %f
  br i1 %both, label %found, label %innernext
found:
  ret i64 %k1
innernext:
  br label %inner
outernext:
  br label %outer
none:
  ret i64 0
}

; Tensors must not lie in the memory of the instance, where state changes while it runs: the number behind the first that does, or 0.
define internal i64 @within(ptr %m, ptr %arguments, ptr %bases, i64 %all) nounwind {
entry:
  %low = ptrtoint ptr %m to i64
  %used = load i64, ptr %m + 88
  %high = add i64 %low, %used
  br label %each
each:
  %k = phi i64 [0, %entry], [%k1, %look]
  %more = icmp slt i64 %k, %all
  br i1 %more, label %look, label %none
look:
  %k1 = add i64 %k, 1
  %place = getelementptr i64, ptr %bases, i64 %k
  %data = load ptr, ptr %place
  %from = ptrtoint ptr %data to i64
  %argument = getelementptr %argument, ptr %arguments, i64 %k
  %bytes = load i64, ptr %argument
  %to = add i64 %from, %bytes
  %a = icmp ult i64 %from, %high
  %b = icmp ult i64 %low, %to
  %c = and i1 %a, %b
  %some = icmp ne i64 %bytes, 0
  %inside = and i1 %c, %some
  br i1 %inside, label %found, label %each
found:
  ret i64 %k1
none:
  ret i64 0
}

define internal ptr @at(ptr %bases, i64 %base, i64 %offset) nounwind {
  %place = getelementptr i64, ptr %bases, i64 %base
  %start = load ptr, ptr %place
  %found = getelementptr i8, ptr %start, i64 %offset
  ret ptr %found
}

define internal i32 @program(ptr %m, ptr %p, ptr %bases) nounwind {
entry:
  %allwords = load ptr, ptr %m + 48
  %wordsatp = getelementptr %program, ptr %p, i64 0, i32 6
  %wordsat = load i64, ptr %wordsatp
  %words = getelementptr i8, ptr %allwords, i64 %wordsat
  %patchesp = getelementptr %program, ptr %p, i64 0, i32 7
  %patches = load ptr, ptr %patchesp
  %patchcountp = getelementptr %program, ptr %p, i64 0, i32 8
  %patchcount = load i64, ptr %patchcountp
  br label %patching
patching:
  %i = phi i64 [0, %entry], [%i1, %patch]
  %morep = icmp slt i64 %i, %patchcount
  br i1 %morep, label %patch, label %checks
patch:
  %i1 = add i64 %i, 1
  %row = getelementptr %patch, ptr %patches, i64 %i
  %position = load i64, ptr %row
  %basep = getelementptr %patch, ptr %row, i64 0, i32 1
  %base = load i64, ptr %basep
  %behindp = getelementptr %patch, ptr %row, i64 0, i32 2
  %behind = load i64, ptr %behindp
  %address = call ptr @at(ptr %bases, i64 %base, i64 %behind)
  %word = getelementptr i64, ptr %words, i64 %position
  store ptr %address, ptr %word
  br label %patching
checks:
  %launchesp = getelementptr %program, ptr %p, i64 0, i32 1
  %launches = load ptr, ptr %launchesp
  %countp = getelementptr %program, ptr %p, i64 0, i32 2
  %count = load i64, ptr %countp
  %firstp = getelementptr %program, ptr %p, i64 0, i32 3
  %first = load i64, ptr %firstp
  %firstwhosep = getelementptr %program, ptr %p, i64 0, i32 14
  %firstwhose = load i64, ptr %firstwhosep
  call void @spread(ptr %m, ptr %launches, i64 %first, ptr %words, i64 %firstwhose)
  %checkrowsp = getelementptr %program, ptr %p, i64 0, i32 11
  %checkrows = load ptr, ptr %checkrowsp
  %checkcountp = getelementptr %program, ptr %p, i64 0, i32 12
  %checkcount = load i64, ptr %checkcountp
  br label %checking
checking:
  %c = phi i64 [0, %checks], [%c1, %check]
  %morec = icmp slt i64 %c, %checkcount
  br i1 %morec, label %check, label %rest
check:
  %c1 = add i64 %c, 1
  %crow = getelementptr %check, ptr %checkrows, i64 %c
  %cbase = load i64, ptr %crow
  %cbehindp = getelementptr %check, ptr %crow, i64 0, i32 1
  %cbehind = load i64, ptr %cbehindp
  %valuep = call ptr @at(ptr %bases, i64 %cbase, i64 %cbehind)
  %value = load i64, ptr %valuep
  %good = icmp eq i64 %value, -1
  br i1 %good, label %checking, label %bad
bad:
  %textp = getelementptr %check, ptr %crow, i64 0, i32 2
  %text = load ptr, ptr %textp
  store ptr %text, ptr %m + 16
  ret i32 C_INDEX
rest:
  %restlaunches = getelementptr %launch, ptr %launches, i64 %first
  %restcount = sub i64 %count, %first
  %restwhosep = getelementptr %program, ptr %p, i64 0, i32 15
  %restwhose = load i64, ptr %restwhosep
  call void @spread(ptr %m, ptr %restlaunches, i64 %restcount, ptr %words, i64 %restwhose)
  %copiesp = getelementptr %program, ptr %p, i64 0, i32 9
  %copies = load ptr, ptr %copiesp
  %copycountp = getelementptr %program, ptr %p, i64 0, i32 10
  %copycount = load i64, ptr %copycountp
  br label %copying
copying:
  %k = phi i64 [0, %rest], [%k1, %copy]
  %morek = icmp slt i64 %k, %copycount
  br i1 %morek, label %copy, label %done
copy:
  %k1 = add i64 %k, 1
  %kto = getelementptr [5 x i64], ptr %copies, i64 %k
  %tobase = load i64, ptr %kto
  %tobehind = load i64, ptr %kto[1]
  %frombase = load i64, ptr %kto[2]
  %frombehind = load i64, ptr %kto[3]
  %size = load i64, ptr %kto[4]
  %to = call ptr @at(ptr %bases, i64 %tobase, i64 %tobehind)
  %from = call ptr @at(ptr %bases, i64 %frombase, i64 %frombehind)
  call void @move(ptr %to, ptr %from, i64 %size)
  br label %copying
done:
  ret i32 0
}

define internal void @move(ptr %to, ptr %from, i64 %size) nounwind {
  %fitting = SIZED
  call void @llvm.memmove.p0.p0.iPTR(ptr %to, ptr %from, iPTR %fitting, i1 false)
  ret void
}

define i32 @NAME_run(ptr %m, i32 %number, ptr %inputs, i32 %incount, ptr %outputs, i32 %outcount) nounwind {
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
  %low = icmp sge i32 %number, 0
  %high = icmp slt i32 %number, PROGRAMS
  %inside = and i1 %low, %high
  br i1 %inside, label %counts, label %set_program
counts:
  %programs = load ptr, ptr %m + 8
  %index = sext i32 %number to i64
  %p = getelementptr %program, ptr %programs, i64 %index
  %signature = load ptr, ptr %p
  %wantinp = getelementptr %signature, ptr %signature, i64 0, i32 2
  %wantin = load i32, ptr %wantinp
  %wantoutp = getelementptr %signature, ptr %signature, i64 0, i32 3
  %wantout = load i32, ptr %wantoutp
  %a = icmp eq i32 %wantin, %incount
  %b = icmp eq i32 %wantout, %outcount
  %ab = and i1 %a, %b
  br i1 %ab, label %lists, label %set_count
lists:
  %noin = icmp eq ptr %inputs, null
  %somein = icmp ne i32 %wantin, 0
  %lackin = and i1 %noin, %somein
  %noout = icmp eq ptr %outputs, null
  %someout = icmp ne i32 %wantout, 0
  %lackout = and i1 %noout, %someout
  %lack = or i1 %lackin, %lackout
  br i1 %lack, label %set_null, label %bindin
bindin:
  %bases = load ptr, ptr %m + 40
  %inspecsp = getelementptr %signature, ptr %signature, i64 0, i32 4
  %inspecs = load ptr, ptr %inspecsp
  %outspecsp = getelementptr %signature, ptr %signature, i64 0, i32 5
  %outspecs = load ptr, ptr %outspecsp
  %argumentsp = getelementptr %program, ptr %p, i64 0, i32 13
  %arguments = load ptr, ptr %argumentsp
  %inn = sext i32 %wantin to i64
  %outn = sext i32 %wantout to i64
  %inbases = getelementptr i64, ptr %bases, i64 3
  %in = call i32 @bind(ptr %m, ptr %inspecs, ptr %arguments, ptr %inputs, i64 %inn, ptr %inbases)
  %ingood = icmp eq i32 %in, 0
  br i1 %ingood, label %bindout, label %leave
bindout:
  %outbases = getelementptr i64, ptr %inbases, i64 %inn
  %outarguments = getelementptr %argument, ptr %arguments, i64 %inn
  %out = call i32 @bind(ptr %m, ptr %outspecs, ptr %outarguments, ptr %outputs, i64 %outn, ptr %outbases)
  %outgood = icmp eq i32 %out, 0
  br i1 %outgood, label %apart, label %leave
apart:
  %all = add i64 %inn, %outn
  %common = call i64 @shared(ptr %arguments, ptr %inbases, i64 %inn, i64 %all)
  %isapart = icmp eq i64 %common, 0
  br i1 %isapart, label %outside, label %overlap
outside:
  %inner = call i64 @within(ptr %m, ptr %arguments, ptr %inbases, i64 %all)
  %isoutside = icmp eq i64 %inner, 0
  br i1 %isoutside, label %go, label %overlap
overlap:
  %first = phi i64 [%common, %apart], [%inner, %outside]
  %which = sub i64 %first, 1
  %whichp = getelementptr %argument, ptr %arguments, i64 %which
  %blamed = call i32 @blame(ptr %m, ptr %whichp, i32 C_OVERLAP)
  br label %leave
go:
  %ran = call i32 @program(ptr %m, ptr %p, ptr %bases)
  br label %leave
set_program:
  br label %general
set_count:
  br label %general
set_null:
  br label %general
general:
  %general_code = phi i32 [C_PROGRAM, %set_program], [C_COUNT, %set_count], [C_NULL, %set_null]
  %general_text = call ptr @NAME_text(i32 %general_code)
  store ptr %general_text, ptr %m + 16
  br label %leave
leave:
  %code = phi i32 [%in, %bindin], [%out, %bindout], [%blamed, %overlap], [%ran, %go], [%general_code, %general]
  store atomic i32 0, ptr %busyp release, align 4
  ret i32 %code
fail_null:
  ret i32 C_NULL
fail_instance:
  ret i32 C_INSTANCE
fail_busy:
  ret i32 C_BUSY
}

define i64 @NAME_memory_bytes() nounwind {
  ret i64 MEMORY_BYTES
}

define i64 @NAME_weights_bytes() nounwind {
  ret i64 FILE_BYTES
}

define ptr @NAME_describe(i32 %number) nounwind {
  %low = icmp sge i32 %number, 0
  %high = icmp slt i32 %number, PROGRAMS
  %inside = and i1 %low, %high
  %index = zext i32 %number to i64
  %found = getelementptr %signature, ptr @signatures, i64 %index
  %result = select i1 %inside, ptr %found, ptr null
  ret ptr %result
}

define ptr @NAME_text(i32 %code) nounwind {
  %low = icmp sge i32 %code, 0
  %high = icmp slt i32 %code, CODES
  %inside = and i1 %low, %high
  %some = select i1 %inside, i32 %code, i32 CODES
  %index = zext i32 %some to i64
  %place = getelementptr ptr, ptr @texts, i64 %index
  %text = load ptr, ptr %place
  ret ptr %text
}

define ptr @NAME_error(ptr %m) nounwind {
entry:
  %nobody = icmp eq ptr %m, null
  br i1 %nobody, label %none, label %look
look:
  %magic = load i64, ptr %m
  %ours = icmp eq i64 %magic, MAGIC
  br i1 %ours, label %found, label %none
found:
  %text = load ptr, ptr %m + 16
  ret ptr %text
none:
  %other = call ptr @NAME_text(i32 C_INSTANCE)
  ret ptr %other
}

define i32 @NAME_reset(ptr %m) nounwind {
entry:
  %nobody = icmp eq ptr %m, null
  br i1 %nobody, label %fail, label %look
look:
  %magic = load i64, ptr %m
  %ours = icmp eq i64 %magic, MAGIC
  br i1 %ours, label %take, label %fail
take:
  %busyp = getelementptr i8, ptr %m, i64 24
  %before = atomicrmw xchg ptr %busyp, i32 1 acquire
  %idle = icmp eq i32 %before, 0
  br i1 %idle, label %start, label %fail_busy
start:
  %weights = load ptr, ptr %m + 32
  %state = load ptr, ptr %m + 56
  br label %loop
loop:
  %k = phi i64 [0, %start], [%k1, %body]
  %more = icmp slt i64 %k, STATES
  br i1 %more, label %body, label %done
body:
  %k1 = add i64 %k, 1
  %row = getelementptr [3 x i64], ptr @states, i64 %k
  %to = load i64, ptr %row
  %size = load i64, ptr %row[1]
  %from = load i64, ptr %row[2]
  %target = getelementptr i8, ptr %state, i64 %to
  %source = getelementptr i8, ptr %weights, i64 %from
  call void @move(ptr %target, ptr %source, i64 %size)
  br label %loop
done:
  store atomic i32 0, ptr %busyp release, align 4
  ret i32 0
fail:
  ret i32 C_INSTANCE
fail_busy:
  ret i32 C_BUSY
}

define ptr @NAME_state(ptr %m, i32 %number, ptr %spec) nounwind {
entry:
  %nobody = icmp eq ptr %m, null
  br i1 %nobody, label %none, label %look
look:
  %magic = load i64, ptr %m
  %ours = icmp eq i64 %magic, MAGIC
  br i1 %ours, label %bounds, label %none
bounds:
  %low = icmp sge i32 %number, 0
  %high = icmp slt i32 %number, STATES
  %inside = and i1 %low, %high
  br i1 %inside, label %found, label %none
found:
  %index = zext i32 %number to i64
  %unasked = icmp eq ptr %spec, null
  br i1 %unasked, label %data, label %told
told:
  %known = getelementptr %spec, ptr @state_specs, i64 %index
  store ptr %known, ptr %spec
  br label %data
data:
  %row = getelementptr [3 x i64], ptr @states, i64 %index
  %behind = load i64, ptr %row
  %state = load ptr, ptr %m + 56
  %place = getelementptr i8, ptr %state, i64 %behind
  ret ptr %place
none:
  ret ptr null
}

define void @NAME_destroy(ptr %m) nounwind {
entry:
  %nobody = icmp eq ptr %m, null
  br i1 %nobody, label %done, label %look
look:
  %magic = load i64, ptr %m
  %ours = icmp eq i64 %magic, MAGIC
  br i1 %ours, label %end, label %done
end:
  call void @end_threads(ptr %m)
  store i64 0, ptr %m
  br label %done
done:
  ret void
}

define i32 @NAME_create(ptr %memory, i64 %size, ptr %weights, i64 %weights_size, ptr %made) nounwind {
entry:
  %nowhere = icmp eq ptr %made, null
  br i1 %nowhere, label %fail_null, label %first
first:
  store ptr null, ptr %made
  %nomemory = icmp eq ptr %memory, null
  br i1 %nomemory, label %fail_null, label %fits
fits:
  %address = ptrtoint ptr %memory to i64
  %rest = and i64 %address, 63
  %aligned = icmp eq i64 %rest, 0
  %enough = icmp uge i64 %size, MEMORY_BYTES
  %usable = and i1 %aligned, %enough
  br i1 %usable, label %weighing, label %fail_memory
weighing:
  %blob = call ptr @weights_of(ptr %weights, i64 %weights_size)
  %noblob = icmp eq ptr %blob, null
  br i1 %noblob, label %fail_weights, label %processor
processor:
  %level = call i32 @level()
  %unfit = icmp slt i32 %level, 0
  br i1 %unfit, label %fail_cpu, label %fill
fill:
  call void @cleared(ptr %memory, i64 HEADER_BYTES)
  %wide = sext i32 %level to i64
  %programsp = getelementptr ptr, ptr @levels, i64 %wide
  %programs = load ptr, ptr %programsp
  store ptr %programs, ptr %memory + 8
  %nothing = call ptr @NAME_text(i32 0)
  store ptr %nothing, ptr %memory + 16
  store ptr %blob, ptr %memory + 32
  %bases = getelementptr i8, ptr %memory, i64 BASES_AT
  store ptr %bases, ptr %memory + 40
  %words = getelementptr i8, ptr %memory, i64 WORDS_AT
  store ptr %words, ptr %memory + 48
  %state = getelementptr i8, ptr %memory, i64 STATE_AT
  store ptr %state, ptr %memory + 56
  %arena = getelementptr i8, ptr %memory, i64 ARENA_AT
  store ptr %arena, ptr %memory + 64
  %control = getelementptr i8, ptr %memory, i64 CONTROL_AT
  store ptr %control, ptr %memory + 72
  store i64 %size, ptr %memory + 80
  call void @lay_out(ptr %memory, i32 1)
  store ptr %arena, ptr %bases
  store ptr %blob, ptr %bases + 8
  store ptr %state, ptr %bases + 16
  br label %copying
copying:
  %k = phi i64 [0, %fill], [%k1, %copy]
  %more = icmp slt i64 %k, PROGRAMS
  br i1 %more, label %copy, label %finish
copy:
  %k1 = add i64 %k, 1
  %p = getelementptr %program, ptr %programs, i64 %k
  %templatep = getelementptr %program, ptr %p, i64 0, i32 4
  %template = load ptr, ptr %templatep
  %countp = getelementptr %program, ptr %p, i64 0, i32 5
  %count = load i64, ptr %countp
  %placep = getelementptr %program, ptr %p, i64 0, i32 6
  %place = load i64, ptr %placep
  %target = getelementptr i8, ptr %words, i64 %place
  %bytes = mul i64 %count, 8
  call void @move(ptr %target, ptr %template, i64 %bytes)
  br label %copying
finish:
  store i64 MAGIC, ptr %memory
  %fresh = call i32 @NAME_reset(ptr %memory)
  store ptr %memory, ptr %made
  ret i32 0
fail_null:
  ret i32 C_NULL
fail_memory:
  ret i32 C_MEMORY
fail_weights:
  ret i32 C_WEIGHTS
fail_cpu:
  ret i32 C_CPU
}
