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
  %wanted = load i64, ptr %addressp[1]
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
  %key = load ptr, ptr %mappingp[1]
  %wanted = load ptr, ptr %mappingp[2]
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
  %length = load i64, ptr %listp[1]
  %wanted = load ptr, ptr %listp[2]
  %size = load i64, ptr %list + 16
  %long = icmp eq i64 %size, %length
  br i1 %long, label %items, label %bad
items:
  %held = load ptr, ptr %list + 24
  br label %item
item:
  %k = phi i64 [0, %items], [%k1, %same]
  %another = icmp slt i64 %k, %length
  br i1 %another, label %look, label %next
look:
  %found = load ptr, ptr %held[%k]
  %old = load ptr, ptr %wanted[%k]
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
  %request = load ptr, ptr %self + 16
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
  %number = load i64, ptr %numbers[%i]
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
  %other = load ptr, ptr %others[%i]
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
  %size = load i64, ptr %tuple + 16
  %long = icmp eq i64 %size, %argument_count
  br i1 %long, label %head, label %bad
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %seen = phi i64 [%stranger_count, %entry], [%seen1, %next]
  %more = icmp slt i64 %i, %argument_count
  br i1 %more, label %body, label %values
body:
  %itemp0 = getelementptr i8, ptr %tuple, i64 24
  %item = load ptr, ptr %itemp0[%i]
  %recordat = mul i64 %i, ARGUMENT_WORDS
  %record = getelementptr ptr, ptr %arguments, i64 %recordat
  %type = load ptr, ptr %record
  %layout = load ptr, ptr %record[1]
  %plain = icmp eq ptr %type, null
  br i1 %plain, label %identity, label %tensor
identity:
  %identical = icmp eq ptr %item, %layout
  br i1 %identical, label %next, label %bad
tensor:
  %type1 = load ptr, ptr %item + 8
  %typed = icmp eq ptr %type1, %type
  br i1 %typed, label %handle, label %bad
handle:
  %layout1 = load ptr, ptr %item + %tensor_layout
  %h1 = icmp eq ptr %layout1, %layout
  %needs1 = load ptr, ptr %item + %tensor_needs
  %needs = load ptr, ptr %record[2]
  %h2 = icmp eq ptr %needs1, %needs
  %h = and i1 %h1, %h2
  br i1 %h, label %storage, label %bad
storage:
  %held = load ptr, ptr %item + %tensor_storage
  %trace = load ptr, ptr %held + %storage_trace
  %s1 = icmp eq ptr %trace, %none
  %value1 = load ptr, ptr %held + %storage_layout
  %value = load ptr, ptr %record[3]
  %s2 = icmp eq ptr %value1, %value
  %new = call i1 @calque_stranger(ptr %held, ptr %strangers, i64 %seen)
  %s12 = and i1 %s1, %s2
  %s = and i1 %s12, %new
  %buffer = load ptr, ptr %held + %storage_buffer
  store ptr %held, ptr %strangers[%seen]
  br i1 %s, label %buffered, label %bad
buffered:
  %btype = load ptr, ptr %buffer + 8
  %b0 = icmp eq ptr %btype, %buffer_type
  br i1 %b0, label %settled, label %bad
settled:
  %task = load ptr, ptr %buffer + %buffer_task
  %never = icmp eq ptr %task, %none
  br i1 %never, label %open, label %queued
queued:
  %ttype = load ptr, ptr %task + 8
  %t1 = icmp eq ptr %ttype, %task_type
  br i1 %t1, label %begun, label %bad
begun:
  %ended = load ptr, ptr %task + %task_done
  %t2 = icmp eq ptr %ended, %yes
  br i1 %t2, label %open, label %bad
open:
  %owner = load ptr, ptr %buffer + %buffer_owner
  %b2 = icmp eq ptr %owner, %none
  %export = load ptr, ptr %buffer + %buffer_export
  %b3 = icmp eq ptr %export, %none
  %b = and i1 %b2, %b3
  %array = load ptr, ptr %buffer + %buffer_array
  %atype = load ptr, ptr %array + 8
  %b4 = icmp eq ptr %atype, %array_type
  %ready = and i1 %b, %b4
  store ptr %array, ptr %objects[%i]
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
  %offset = load i64, ptr %checkp[1]
  %many = load i64, ptr %checkp[2]
  %limit = load i64, ptr %checkp[3]
  %holder = load ptr, ptr %objects[%which]
  %data = load ptr, ptr %holder + 16
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
  %object = load ptr, ptr %objects[%i]
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
  %first = load ptr, ptr %self + 16
  %request = getelementptr i64, ptr %first, i64 REQUEST_WORDS
LOAD_AGAIN
  %tuple = load ptr, ptr %arguments0
  %stands = call i1 @calque_standing(ptr %request, ptr %tuple)
  %run = icmp sgt i64 %count, 2
  %go = and i1 %stands, %run
  br i1 %go, label %start, label %done
start:
  %scalars = load ptr, ptr %arguments0[1]
  %results = load ptr, ptr %arguments0[2]
  %many = load i64, ptr %results + 16
  %items = load ptr, ptr %results + 24
  %behind = getelementptr ptr, ptr %objects, i64 %argument_count
  br label %place
place:
  %k = phi i64 [0, %start], [%k1, %placed]
  %another = icmp slt i64 %k, %many
  br i1 %another, label %placed, label %hold
placed:
  %from = load ptr, ptr %items[%k]
  store ptr %from, ptr %behind[%k]
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
