"""Whether Python objects are as they were, as LLVM IR: what `same.py` lays out in tables is compared without running any Python.

All of it runs under the interpreter's lock. Rows are looked at in order, and a row only follows addresses that the rows before it have found where
they were: an object whose address an earlier row has met is alive.
"""

from __future__ import annotations

SAME = ("rows", "row_count", "entries", "entry_count", "lists", "list_count", "lookup", "yes", "no", "refer")
"""Words of a request of `calque_same`: rows (address, word there); entries of dicts (dict, key, value); lists (list, its length, address of its
items); functions of CPython that look a key up and add a reference; True and False."""

AGAIN = (
    "rows", "row_count", "arguments", "argument_count", "strangers", "stranger_count", "indices", "index_count", "objects", "yes", "no", "refer",
    "none", "array_type", "buffer_type", "tensor_storage", "tensor_layout", "tensor_needs", "storage_trace", "storage_layout", "storage_buffer",
    "buffer_array", "buffer_task", "buffer_owner", "buffer_export", "task_type", "task_done", "kept", "kept_count", "guest_count", "drop",
)  # fmt: skip
"""Words of a request of `calque_again` behind those of `REQUEST`. Arguments: type (0: it is the object in the next word), layout, whether it
requires a gradient, layout of its storage; strangers: storages that no argument may have; indices: (argument, byte offset, how many, size);
objects: where the arrays of the arguments and results stand; kept: arrays that the run writes or reads, which other threads might drop while it is
without the interpreter's lock; guests: so many of the objects, too (which may change meanwhile). Those from `tensor_storage` to `buffer_export`
and `task_done` are offsets of attributes."""

ARGUMENT_WORDS = 4
INDEX_WORDS = 4

_TEXT = """
define internal i1 @calque_rows(ptr %rows, i64 %count) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %good
body:
  %place = shl i64 %i, 1
  %addressp = getelementptr ptr, ptr %rows, i64 %place
  %address = load ptr, ptr %addressp
  %wantedp = getelementptr i64, ptr %addressp, i64 1
  %wanted = load i64, ptr %wantedp
  %found = load i64, ptr %address
  %equal = icmp eq i64 %found, %wanted
  br i1 %equal, label %next, label %bad
next:
  %i1 = add i64 %i, 1
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}

define internal i1 @calque_entries(ptr %entries, i64 %count, ptr %lookup) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %good
body:
  %place = mul i64 %i, 3
  %mappingp = getelementptr ptr, ptr %entries, i64 %place
  %mapping = load ptr, ptr %mappingp
  %keyp = getelementptr ptr, ptr %mappingp, i64 1
  %key = load ptr, ptr %keyp
  %wantedp = getelementptr ptr, ptr %mappingp, i64 2
  %wanted = load ptr, ptr %wantedp
  %found = call ptr %lookup(ptr %mapping, ptr %key)
  %equal = icmp eq ptr %found, %wanted
  br i1 %equal, label %next, label %bad
next:
  %i1 = add i64 %i, 1
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}

define internal i1 @calque_lists(ptr %lists, i64 %count) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %good
body:
  %place = mul i64 %i, 3
  %listp = getelementptr ptr, ptr %lists, i64 %place
  %list = load ptr, ptr %listp
  %lengthp = getelementptr i64, ptr %listp, i64 1
  %length = load i64, ptr %lengthp
  %wantedp = getelementptr ptr, ptr %listp, i64 2
  %wanted = load ptr, ptr %wantedp
  %sizep = getelementptr i8, ptr %list, i64 16
  %size = load i64, ptr %sizep
  %long = icmp eq i64 %size, %length
  br i1 %long, label %items, label %bad
items:
  %itemsp = getelementptr i8, ptr %list, i64 24
  %held = load ptr, ptr %itemsp
  br label %item
item:
  %k = phi i64 [0, %items], [%k1, %same]
  %another = icmp slt i64 %k, %length
  br i1 %another, label %look, label %next
look:
  %foundp = getelementptr ptr, ptr %held, i64 %k
  %found = load ptr, ptr %foundp
  %oldp = getelementptr ptr, ptr %wanted, i64 %k
  %old = load ptr, ptr %oldp
  %equal = icmp eq ptr %found, %old
  br i1 %equal, label %same, label %bad
same:
  %k1 = add i64 %k, 1
  br label %item
next:
  %i1 = add i64 %i, 1
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}

; Bound to its request; no arguments.
define ptr @calque_same(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %requestp = getelementptr i8, ptr %self, i64 16
  %request = load ptr, ptr %requestp
LOAD_SAME
  %first = call i1 @calque_rows(ptr %rows, i64 %row_count)
  br i1 %first, label %second, label %done
second:
  %listed = call i1 @calque_lists(ptr %lists, i64 %list_count)
  br i1 %listed, label %third, label %done
third:
  %entered = call i1 @calque_entries(ptr %entries, i64 %entry_count, ptr %lookup)
  br label %done
done:
  %same = phi i1 [false, %entry], [false, %second], [%entered, %third]
  %result = select i1 %same, ptr %yes, ptr %no
  call void %refer(ptr %result)
  ret ptr %result
}

; Whether all numbers are in 0 .. size - 1.
define internal i1 @calque_within(ptr %numbers, i64 %count, i64 %size) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %good
body:
  %numberp = getelementptr i64, ptr %numbers, i64 %i
  %number = load i64, ptr %numberp
  %inside = icmp ult i64 %number, %size
  br i1 %inside, label %next, label %bad
next:
  %i1 = add i64 %i, 1
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}

; Whether a storage is none of these pointers.
define internal i1 @calque_stranger(ptr %storage, ptr %others, i64 %count) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %good
body:
  %otherp = getelementptr ptr, ptr %others, i64 %i
  %other = load ptr, ptr %otherp
  %equal = icmp eq ptr %storage, %other
  br i1 %equal, label %bad, label %next
next:
  %i1 = add i64 %i, 1
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}

; Whether everything is as it was, and the arguments (a tuple) are like those of then; their arrays go to `objects`. Where the storages of the
; arguments seen so far stand: behind the strangers.
define internal i1 @calque_standing(ptr %request, ptr %tuple) nounwind {
entry:
LOAD_AGAIN
  %sizep = getelementptr i8, ptr %tuple, i64 16
  %size = load i64, ptr %sizep
  %long = icmp eq i64 %size, %argument_count
  br i1 %long, label %head, label %bad
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %seen = phi i64 [%stranger_count, %entry], [%seen1, %next]
  %more = icmp slt i64 %i, %argument_count
  br i1 %more, label %body, label %values
body:
  %itemp0 = getelementptr i8, ptr %tuple, i64 24
  %itemp = getelementptr ptr, ptr %itemp0, i64 %i
  %item = load ptr, ptr %itemp
  %recordat = mul i64 %i, ARGUMENT_WORDS
  %record = getelementptr ptr, ptr %arguments, i64 %recordat
  %type = load ptr, ptr %record
  %layoutp = getelementptr ptr, ptr %record, i64 1
  %layout = load ptr, ptr %layoutp
  %plain = icmp eq ptr %type, null
  br i1 %plain, label %identity, label %tensor
identity:
  %identical = icmp eq ptr %item, %layout
  br i1 %identical, label %next, label %bad
tensor:
  %typep = getelementptr i8, ptr %item, i64 8
  %type1 = load ptr, ptr %typep
  %typed = icmp eq ptr %type1, %type
  br i1 %typed, label %handle, label %bad
handle:
  %layoutat = getelementptr i8, ptr %item, i64 %tensor_layout
  %layout1 = load ptr, ptr %layoutat
  %h1 = icmp eq ptr %layout1, %layout
  %needsat = getelementptr i8, ptr %item, i64 %tensor_needs
  %needs1 = load ptr, ptr %needsat
  %needsp = getelementptr ptr, ptr %record, i64 2
  %needs = load ptr, ptr %needsp
  %h2 = icmp eq ptr %needs1, %needs
  %h = and i1 %h1, %h2
  br i1 %h, label %storage, label %bad
storage:
  %storageat = getelementptr i8, ptr %item, i64 %tensor_storage
  %held = load ptr, ptr %storageat
  %traceat = getelementptr i8, ptr %held, i64 %storage_trace
  %trace = load ptr, ptr %traceat
  %s1 = icmp eq ptr %trace, %none
  %valueat = getelementptr i8, ptr %held, i64 %storage_layout
  %value1 = load ptr, ptr %valueat
  %valuep = getelementptr ptr, ptr %record, i64 3
  %value = load ptr, ptr %valuep
  %s2 = icmp eq ptr %value1, %value
  %new = call i1 @calque_stranger(ptr %held, ptr %strangers, i64 %seen)
  %s12 = and i1 %s1, %s2
  %s = and i1 %s12, %new
  %bufferat = getelementptr i8, ptr %held, i64 %storage_buffer
  %buffer = load ptr, ptr %bufferat
  %knownp = getelementptr ptr, ptr %strangers, i64 %seen
  store ptr %held, ptr %knownp
  br i1 %s, label %buffered, label %bad
buffered:
  %btypep = getelementptr i8, ptr %buffer, i64 8
  %btype = load ptr, ptr %btypep
  %b0 = icmp eq ptr %btype, %buffer_type
  br i1 %b0, label %settled, label %bad
settled:
  %taskat = getelementptr i8, ptr %buffer, i64 %buffer_task
  %task = load ptr, ptr %taskat
  %never = icmp eq ptr %task, %none
  br i1 %never, label %open, label %queued
queued:
  %ttypep = getelementptr i8, ptr %task, i64 8
  %ttype = load ptr, ptr %ttypep
  %t1 = icmp eq ptr %ttype, %task_type
  br i1 %t1, label %begun, label %bad
begun:
  %doneat = getelementptr i8, ptr %task, i64 %task_done
  %ended = load ptr, ptr %doneat
  %t2 = icmp eq ptr %ended, %yes
  br i1 %t2, label %open, label %bad
open:
  %ownerat = getelementptr i8, ptr %buffer, i64 %buffer_owner
  %owner = load ptr, ptr %ownerat
  %b2 = icmp eq ptr %owner, %none
  %exportat = getelementptr i8, ptr %buffer, i64 %buffer_export
  %export = load ptr, ptr %exportat
  %b3 = icmp eq ptr %export, %none
  %b = and i1 %b2, %b3
  %arrayat = getelementptr i8, ptr %buffer, i64 %buffer_array
  %array = load ptr, ptr %arrayat
  %atypep = getelementptr i8, ptr %array, i64 8
  %atype = load ptr, ptr %atypep
  %b4 = icmp eq ptr %atype, %array_type
  %ready = and i1 %b, %b4
  %objectp = getelementptr ptr, ptr %objects, i64 %i
  store ptr %array, ptr %objectp
  %seenmore = add i64 %seen, 1
  br i1 %ready, label %next, label %bad
next:
  %seen1 = phi i64 [%seen, %identity], [%seenmore, %open]
  %i1 = add i64 %i, 1
  br label %head
values:
  %as = call i1 @calque_rows(ptr %rows, i64 %row_count)
  br i1 %as, label %checks, label %bad
checks:
  %c = phi i64 [0, %values], [%c1, %checked]
  %another = icmp slt i64 %c, %index_count
  br i1 %another, label %check, label %good
check:
  %checkat = mul i64 %c, INDEX_WORDS
  %checkp = getelementptr i64, ptr %indices, i64 %checkat
  %which = load i64, ptr %checkp
  %offsetp = getelementptr i64, ptr %checkp, i64 1
  %offset = load i64, ptr %offsetp
  %manyp = getelementptr i64, ptr %checkp, i64 2
  %many = load i64, ptr %manyp
  %limitp = getelementptr i64, ptr %checkp, i64 3
  %limit = load i64, ptr %limitp
  %holderp = getelementptr ptr, ptr %objects, i64 %which
  %holder = load ptr, ptr %holderp
  %datap = getelementptr i8, ptr %holder, i64 16
  %data = load ptr, ptr %datap
  %numbers = getelementptr i8, ptr %data, i64 %offset
  %within = call i1 @calque_within(ptr %numbers, i64 %many, i64 %limit)
  br i1 %within, label %checked, label %bad
checked:
  %c1 = add i64 %c, 1
  br label %checks
good:
  ret i1 true
bad:
  ret i1 false
}

; Add (or drop) a reference to each of these objects; not to those that are not there.
define internal void @calque_each(ptr %objects, i64 %count, ptr %act) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %objectp = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %objectp
  %absent = icmp eq ptr %object, null
  br i1 %absent, label %next, label %there
there:
  call void %act(ptr %object)
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Called with (arguments) it only tells whether everything stands as it did; with (arguments, scalars, list of the arrays of results) it also runs
; the program if so.
define ptr @calque_again(ptr %self, ptr %arguments0, i64 %count) nounwind {
entry:
  %requestp = getelementptr i8, ptr %self, i64 16
  %first = load ptr, ptr %requestp
  %request = getelementptr i64, ptr %first, i64 REQUEST_WORDS
LOAD_AGAIN
  %tuple = load ptr, ptr %arguments0
  %stands = call i1 @calque_standing(ptr %request, ptr %tuple)
  %run = icmp sgt i64 %count, 2
  %go = and i1 %stands, %run
  br i1 %go, label %start, label %done
start:
  %scalarsp = getelementptr ptr, ptr %arguments0, i64 1
  %scalars = load ptr, ptr %scalarsp
  %resultsp = getelementptr ptr, ptr %arguments0, i64 2
  %results = load ptr, ptr %resultsp
  %manyp = getelementptr i8, ptr %results, i64 16
  %many = load i64, ptr %manyp
  %itemsp = getelementptr i8, ptr %results, i64 24
  %items = load ptr, ptr %itemsp
  %behind = getelementptr ptr, ptr %objects, i64 %argument_count
  br label %place
place:
  %k = phi i64 [0, %start], [%k1, %placed]
  %another = icmp slt i64 %k, %many
  br i1 %another, label %placed, label %hold
placed:
  %fromp = getelementptr ptr, ptr %items, i64 %k
  %from = load ptr, ptr %fromp
  %top = getelementptr ptr, ptr %behind, i64 %k
  store ptr %from, ptr %top
  %k1 = add i64 %k, 1
  br label %place
hold:
  %guests = alloca ptr, i64 %guest_count
  %bytes = mul i64 %guest_count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %guests, ptr %objects, i64 %bytes, i1 false)
  call void @calque_each(ptr %guests, i64 %guest_count, ptr %refer)
  call void @calque_each(ptr %kept, i64 %kept_count, ptr %refer)
  %odd = call i64 @step(ptr %first, ptr %objects, ptr %scalars)
  call void @calque_each(ptr %kept, i64 %kept_count, ptr %drop)
  call void @calque_each(ptr %guests, i64 %guest_count, ptr %drop)
  %ran = icmp eq i64 %odd, 0
  br label %done
done:
  %fine = phi i1 [%stands, %entry], [%ran, %hold]
  %result = select i1 %fine, ptr %yes, ptr %no
  call void %refer(ptr %result)
  ret ptr %result
}
"""

_POINTERS = {
    "rows", "entries", "lists", "lookup", "yes", "no", "refer", "arguments", "strangers", "indices", "objects", "none", "array_type", "buffer_type",
    "task_type", "kept", "drop",
}  # fmt: skip


def _loads(names: tuple[str, ...]) -> str:
    """The words of a request as values of their names."""
    lines = []
    for k, name in enumerate(names):
        lines.append(f"  %{name}.at = getelementptr i64, ptr %request, i64 {k}")
        lines.append(f"  %{name} = load {'ptr' if name in _POINTERS else 'i64'}, ptr %{name}.at")
    return "\n".join(lines)


def same_text(request_words: int) -> str:
    """The functions; `request_words`: length of a request of `calque_step`."""
    text = _TEXT.replace("LOAD_SAME", _loads(SAME)).replace("LOAD_AGAIN", _loads(AGAIN)).replace("REQUEST_WORDS", str(request_words))
    return text.replace("ARGUMENT_WORDS", str(ARGUMENT_WORDS)).replace("INDEX_WORDS", str(INDEX_WORDS))
