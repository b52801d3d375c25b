/* Members of a group on one machine that meet in memory which all of them see (`calque/distributed/shelf.py`), and calls that are over as soon as
   they have met.

   Each member has two places, which take turns. It writes what it brings into one of them, then the number of the meeting; the others wait for that
   number. Whoever writes into a place again has read the next meeting's number of every other, which each writes when it is done with this one. */
#include "kernels.h"
#include "eager.h"
#include <stdatomic.h>
#include <string.h>
#include <time.h>

typedef struct { _Atomic int64_t number; int64_t word, nbytes, unused[5]; char data[]; } Place_Of; /* 64 bytes before the data */
typedef struct {
    PyObject_HEAD
    Py_buffer memory;
    Py_ssize_t members, own, stride; /* stride: of places, in bytes */
    int64_t number;
    PyObject *rows; /* of the meeting that was begun last: a pair of lists, or NULL */
    PyObject *differ, *make_rows;
} Shelf;

#define HEAD_BYTES ((Py_ssize_t)sizeof(Place_Of))
#define WITH_THE_LOCK 20e-6 /* seconds of a wait in which no other thread of this process gets Python's lock */
#define MOMENTS 64 /* looks between two at the clock */

static PyObject *call_class, *watch, *queues, *waiting, *done_word;
static struct { Py_ssize_t group, number, kind, line, state, asked, begun, ended; } call_at;
static double spin;
#define NAMES(X) X(payload) X(kind) X(code) X(function) X(nbytes) X(rows) X(turn) X(closed) X(calls) X(checks) X(failed) X(recorder) X(passed) X(number) X(_busy) X(acquire) X(release) X(append) X(loose)
#define NAME(x) static PyObject *name_##x;
NAMES(NAME)

/* set_shelf(Call, WATCH, queues of exchanges, states of a call that waits and that is over, seconds for which one waits awake) */
PyObject *set_shelf(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOd", &call_class, &watch, &queues, &waiting, &done_word, &spin)) return NULL;
#define INTERN(x) name_##x = PyUnicode_InternFromString(#x);
    NAMES(INTERN)
#define SLOT(x) { \
        PyObject *member = PyObject_GetAttrString(call_class, #x); \
        if (member == NULL) return NULL; \
        call_at.x = ((PyMemberDescrObject *)member)->d_member->offset; \
        Py_DECREF(member); \
    }
    SLOT(group) SLOT(number) SLOT(kind) SLOT(line) SLOT(state) SLOT(asked) SLOT(begun) SLOT(ended)
    Py_INCREF(args); /* keeps all of them */
    Py_RETURN_NONE;
}

static Place_Of *place(Shelf *shelf, Py_ssize_t member) {
    return (Place_Of *)((char *)shelf->memory.buf + (2 * member + (shelf->number & 1)) * shelf->stride);
}

static bool come(Shelf *shelf) {
    for (Py_ssize_t k = 0; k < shelf->members; k++)
        if (atomic_load_explicit(&place(shelf, k)->number, memory_order_acquire) != shelf->number) return false;
    return true;
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Whether all have come, or do in a moment, for which this thread keeps its core, and at first Python's lock. */
static bool come_soon(Shelf *shelf) {
    double begun = 0, passed = 0;
    PyThreadState *thread = NULL;
    bool here = come(shelf);
    while (!here && passed < spin) {
        for (int k = 0; k < MOMENTS && !here; k++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            here = come(shelf);
        }
        if (here) break;
        if (begun == 0) begun = now(CLOCK_MONOTONIC);
        else passed = now(CLOCK_MONOTONIC) - begun;
        if (thread == NULL && passed > WITH_THE_LOCK) thread = PyEval_SaveThread();
    }
    if (thread != NULL) PyEval_RestoreThread(thread);
    return here;
}

/* Begin a meeting: this member's part of it. `source`: of `nbytes`, or NULL. */
static void post(Shelf *shelf, int64_t word, Py_ssize_t nbytes, const char *source) {
    shelf->number++;
    Place_Of *mine = place(shelf, shelf->own);
    if (source != NULL) memcpy(mine->data, source, nbytes);
    mine->word = word;
    mine->nbytes = nbytes;
    atomic_store_explicit(&mine->number, shelf->number, memory_order_release);
}

static bool same_words(Shelf *shelf) {
    Place_Of *mine = place(shelf, shelf->own);
    for (Py_ssize_t k = 0; k < shelf->members; k++)
        if (place(shelf, k)->word != mine->word || place(shelf, k)->nbytes != mine->nbytes) return false;
    return true;
}

/* The arrays of a payload on both sides, as it remembers them. A borrowed reference, or NULL with an error. */
static PyObject *rows_of_payload(Shelf *shelf, PyObject *payload) {
    PyObject *rows = PyObject_GetAttr(payload, name_rows);
    if (rows == Py_None) {
        Py_DECREF(rows);
        rows = PyObject_CallOneArg(shelf->make_rows, payload);
        if (rows != NULL && PyObject_SetAttr(payload, name_rows, rows) < 0) Py_CLEAR(rows);
    }
    Py_XDECREF(rows); /* the payload has it */
    return rows;
}

static Py_ssize_t size_of(PyObject *payload) {
    PyObject *nbytes = PyObject_GetAttr(payload, name_nbytes);
    Py_ssize_t found = nbytes == NULL ? -1 : PyLong_AsSsize_t(nbytes);
    Py_XDECREF(nbytes);
    return found;
}

/* begin(word, payload, own): as that of `Letters`. */
static PyObject *shelf_begin(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Shelf *shelf = (Shelf *)object;
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "begin takes a word, a payload and an array"); return NULL; }
    int64_t word = PyLong_AsLongLong(args[0]);
    if (word == -1 && PyErr_Occurred()) return NULL;
    PyObject *rows = NULL;
    PyArrayObject *own = NULL;
    Py_ssize_t nbytes = 0;
    if (args[1] != Py_None) {
        nbytes = size_of(args[1]);
        if (nbytes < 0 || nbytes > shelf->stride - HEAD_BYTES || (rows = rows_of_payload(shelf, args[1])) == NULL) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a payload is larger than its place");
            return NULL;
        }
    }
    if (args[2] != Py_None) {
        own = PyArray_Check(args[2]) ? (PyArrayObject *)args[2] : NULL;
        if (own == NULL || !PyArray_IS_C_CONTIGUOUS(own) || PyArray_NBYTES(own) != nbytes) { PyErr_SetString(PyExc_ValueError, "expected a flat array of the payload"); return NULL; }
    }
    post(shelf, word, nbytes, own == NULL ? NULL : PyArray_BYTES(own));
    Py_XSETREF(shelf->rows, Py_XNewRef(rows));
    return Py_NewRef(object);
}

static PyObject *shelf_done(PyObject *object, PyObject *none) {
    (void)none;
    return PyBool_FromLong(come((Shelf *)object));
}

/* brought(): see `Meeting`. */
static PyObject *shelf_brought(PyObject *object, PyObject *none) {
    (void)none;
    Shelf *shelf = (Shelf *)object;
    if (!same_words(shelf)) { PyErr_SetNone(shelf->differ); return NULL; }
    if (shelf->rows == NULL) Py_RETURN_NONE;
    return Py_NewRef(PyTuple_GET_ITEM(shelf->rows, shelf->number & 1));
}

/* ------------------------------------------------------------------------------------------------------------- whole calls */

static bool is_false(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object, name);
    Py_XDECREF(found);
    return found == Py_False;
}

static Py_ssize_t integer(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object, name);
    Py_ssize_t value = found == NULL ? -1 : PyLong_AsSsize_t(found);
    Py_XDECREF(found);
    return value;
}

/* What a tensor shows, if that is all of an array that is there and that nobody outside sees. */
static PyArrayObject *whole_of(PyObject *t) {
    PyObject *storage = AT(t, Tensor.at._storage), *view = AT(t, Tensor.at._layout);
    PyArrayObject *array = view == AT(storage, Storage.at.layout) && AT(view, Layout.at.plain) == Py_True ? memory_in(storage) : NULL;
    if (array == NULL) return NULL;
    PyObject *buffer = AT(storage, Storage.at.buffer);
    bool own = AT(buffer, Buffer.at.owner) == Py_None && AT(buffer, Buffer.at.export) == Py_None;
    bool whole = PyArray_NDIM(array) == 1 && PyArray_IS_C_CONTIGUOUS(array) && PyArray_SIZE(array) == PyLong_AsSsize_t(AT(view, Layout.at.numel));
    return own && whole && (PyObject *)PyArray_DESCR(array) == AT(AT(view, Layout.at.dtype), DType.at.np) ? array : NULL;
}

/* Whether this thread computes, and nothing waits to be done before a call. */
static bool nothing_before(void) {
    PyObject *state = current_state();
    if (state == NULL) return false;
    PyObject *trace = AT(state, State.at.trace);
    bool well = Py_IS_TYPE(trace, eager_type) && possible(state) && is_false(trace, name_loose);
    Py_DECREF(state);
    return well && PyList_GET_SIZE(queues) > 0 && integer(PyList_GET_ITEM(queues, 0), name__busy) == 0;
}

/* An entry of the flight recorder, which has it from here on; NULL with an error. */
static PyObject *noted(PyObject *group, PyObject *number, PyObject *kind) {
    PyObject *call = new_object((PyTypeObject *)call_class), *line = line_of_user(NULL, NULL), *recorder = PyObject_GetAttr(watch, name_recorder);
    PyObject *calls = recorder == NULL ? NULL : PyObject_GetAttr(recorder, name_calls), *which = PyObject_GetAttr(group, name_number);
    PyObject *asked = PyFloat_FromDouble(now(CLOCK_REALTIME)), *found = NULL;
    if (call != NULL && line != NULL && calls != NULL && which != NULL && asked != NULL) {
        put(call, call_at.group, which);
        put(call, call_at.number, number);
        put(call, call_at.kind, kind);
        put(call, call_at.line, line);
        put(call, call_at.state, waiting);
        put(call, call_at.asked, asked);
        put(call, call_at.begun, asked);
        AT(call, call_at.ended) = PyFloat_FromDouble(0);
        PyObject *nothing = PyObject_CallMethodOneArg(calls, name_append, call);
        if (nothing != NULL) found = Py_NewRef(call);
        Py_XDECREF(nothing);
    }
    Py_XDECREF(call);
    Py_XDECREF(line);
    Py_XDECREF(recorder);
    Py_XDECREF(calls);
    Py_XDECREF(which);
    Py_XDECREF(asked);
    return found;
}

/* A storage holds a value from now on, as `set_value` of `exchange.py` has it; false with an error. */
static bool hold(PyObject *t, PyObject *buffer) {
    PyObject *storage = AT(t, Tensor.at._storage), *version = PyNumber_Add(AT(storage, Storage.at.version), known.one);
    if (version == NULL) return false;
    replace(storage, Storage.at.trace, Py_NewRef(Py_None));
    replace(storage, Storage.at.slot, Py_NewRef(known.minus_one));
    replace(storage, Storage.at.home, Py_NewRef(Py_None));
    replace(storage, Storage.at.writer, Py_NewRef(Py_None));
    replace(storage, Storage.at.version, version);
    replace(t, Tensor.at._cache, Py_NewRef(Py_None));
    replace(storage, Storage.at.buffer, Py_NewRef(buffer)); /* last: what is let go may run code */
    return true;
}

/* Add up, or whatever it is, what all have brought, in their order. */
static void combine(Shelf *shelf, PyUFuncGenericFunction loop, void *data, npy_intp count, npy_intp size, char *found) {
    npy_intp steps[3] = {size, size, size};
    for (Py_ssize_t k = 1; k < shelf->members; k++) {
        char *operands[3] = {k == 1 ? place(shelf, 0)->data : found, place(shelf, k)->data, found};
        loop(operands, &count, steps, data);
    }
}

/* The call itself, once it is known to be possible; the group's lock is held. */
static PyObject *called(Shelf *shelf, PyObject *group, PyObject *kind, PyObject *payload, PyObject *t, PyArrayObject *source, PyUFuncGenericFunction loop, void *data) {
    PyObject *rows = rows_of_payload(shelf, payload), *storage = AT(t, Tensor.at._storage), *view = AT(t, Tensor.at._layout);
    npy_intp count = PyArray_SIZE(source);
    Py_INCREF(PyArray_DESCR(source));
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(source), 1, &count, NULL, NULL, 0, NULL), *buffer = new_buffer(array);
    Py_ssize_t number = integer(group, name_calls) + 1, code = integer(kind, name_code);
    PyObject *checks = PyObject_GetAttr(group, name_checks), *numbered = PyLong_FromSsize_t(number), *call = NULL, *passed = NULL, *which = NULL, *answer = NULL;
    bool begun = rows != NULL && buffer != NULL && checks != NULL && numbered != NULL && number > 0 && code >= 0
        && (call = noted(group, numbered, kind)) != NULL && PyObject_SetAttr(group, name_calls, numbered) == 0;
    if (begun) {
        PyObject *before = Py_NewRef(AT(storage, Storage.at.buffer));
        Py_INCREF(storage); /* other threads may run while this one waits */
        post(shelf, checks == Py_True ? (int64_t)((uint64_t)number << 32 | (uint64_t)code) : 0, PyArray_NBYTES(source), PyArray_BYTES(source));
        Py_XSETREF(shelf->rows, Py_NewRef(rows));
        if (!come_soon(shelf) || !same_words(shelf)) {
            answer = Py_NewRef(call); /* which goes on in Python, and holds the lock */
        } else {
            combine(shelf, loop, data, count, PyArray_ITEMSIZE(source), PyArray_BYTES((PyArrayObject *)array));
            passed = PyObject_GetAttr(watch, name_passed);
            which = PyObject_GetAttr(group, name_number);
            replace(call, call_at.state, Py_NewRef(done_word));
            replace(call, call_at.ended, PyFloat_FromDouble(now(CLOCK_REALTIME)));
            bool well = passed != NULL && which != NULL && PyObject_SetItem(passed, which, numbered) == 0;
            if (well && (AT(t, Tensor.at._storage) != storage || AT(t, Tensor.at._layout) != view || AT(storage, Storage.at.buffer) != before
                || AT(before, Buffer.at.owner) != Py_None || AT(before, Buffer.at.export) != Py_None)) answer = Py_NewRef(buffer);
            else if (well && hold(t, buffer)) answer = Py_NewRef(Py_True);
        }
        Py_DECREF(before);
        Py_DECREF(storage);
    }
    Py_XDECREF(buffer);
    Py_XDECREF(checks);
    Py_XDECREF(numbered);
    Py_XDECREF(call);
    Py_XDECREF(passed);
    Py_XDECREF(which);
    return answer;
}

/* swift(group, plan, t): True if the call is over, and `t` has the result; a buffer with the result, if `t` has changed meanwhile; None, and nothing has happened, where Python is to do it; or what the flight
   recorder has of a call that was begun, whose others are not there yet, or come with another one. */
static PyObject *shelf_swift(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Shelf *shelf = (Shelf *)object;
    PyObject *payload = NULL, *kind = NULL, *function = NULL, *turn = NULL, *failed = NULL, *answer = NULL;
    if (count != 3 || watch == NULL || known.local == NULL || !is_tensor(args[2])) Py_RETURN_NONE;
    PyObject *group = args[0], *t = args[2];
    PyArrayObject *source = whole_of(t);
    if (source == NULL || !nothing_before()) goto out;
    Py_INCREF(source);
    int type = PyArray_TYPE(source), types[3] = {type, type, type};
    PyUFuncGenericFunction loop;
    void *data;
    if ((payload = PyObject_GetAttr(args[1], name_payload)) == NULL || (function = PyObject_GetAttr(payload, name_function)) == NULL
        || (kind = PyObject_GetAttr(args[1], name_kind)) == NULL || (turn = PyObject_GetAttr(group, name_turn)) == NULL
        || (failed = PyObject_GetAttr(watch, name_failed)) == NULL) goto done;
    if (!find_loop(function, types, 3, &loop, &data) || size_of(payload) != PyArray_NBYTES(source) || PyArray_NBYTES(source) > shelf->stride - HEAD_BYTES) goto done;
    if (PyObject_IsTrue(failed) != 0 || !is_false(group, name_closed)) goto done;
    PyObject *got = PyObject_CallMethodOneArg(turn, name_acquire, Py_False);
    Py_XDECREF(got);
    if (got != Py_True) goto done;
    answer = called(shelf, group, kind, payload, t, source, loop, data);
    if (answer == NULL || !Py_IS_TYPE(answer, (PyTypeObject *)call_class)) {
        PyObject *type_of, *value, *trace;
        PyErr_Fetch(&type_of, &value, &trace);
        Py_XDECREF(PyObject_CallMethodNoArgs(turn, name_release));
        PyErr_Restore(type_of, value, trace);
    }
done:
    Py_DECREF(source);
out:
    Py_XDECREF(payload);
    Py_XDECREF(kind);
    Py_XDECREF(function);
    Py_XDECREF(turn);
    Py_XDECREF(failed);
    return answer == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : answer;
}

/* ------------------------------------------------------------------------------------------------------------------ the type */

/* Shelf(memory, members, place of this one, bytes of a place, Differ, what makes the arrays of a payload) */
static PyObject *shelf_create(PyTypeObject *type, PyObject *args, PyObject *names) {
    (void)names;
    PyObject *memory, *differ, *make_rows;
    Py_ssize_t members, own, stride;
    if (!PyArg_ParseTuple(args, "OnnnOO", &memory, &members, &own, &stride, &differ, &make_rows)) return NULL;
    Shelf *shelf = (Shelf *)type->tp_alloc(type, 0);
    if (shelf == NULL || PyObject_GetBuffer(memory, &shelf->memory, PyBUF_WRITABLE) < 0) { Py_XDECREF(shelf); return NULL; }
    shelf->members = members;
    shelf->own = own;
    shelf->stride = stride;
    shelf->differ = Py_NewRef(differ);
    shelf->make_rows = Py_NewRef(make_rows);
    if (stride % 64 != 0 || stride < HEAD_BYTES || own < 0 || own >= members || shelf->memory.len < 2 * members * stride) {
        PyErr_SetString(PyExc_ValueError, "expected memory for two places of each member");
        Py_CLEAR(shelf);
    }
    return (PyObject *)shelf;
}

static void shelf_destroy(PyObject *object) {
    Shelf *shelf = (Shelf *)object;
    Py_XDECREF(shelf->rows);
    Py_XDECREF(shelf->differ);
    Py_XDECREF(shelf->make_rows);
    if (shelf->memory.obj != NULL) PyBuffer_Release(&shelf->memory);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef shelf_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))shelf_begin, METH_FASTCALL, "begin(word, payload, own): write what this member brings."},
    {"done", shelf_done, METH_NOARGS, "done(): whether all have come."},
    {"brought", shelf_brought, METH_NOARGS, "brought(): what they have brought, or None."},
    {"swift", (PyCFunction)(void (*)(void))shelf_swift, METH_FASTCALL, "swift(group, plan, t): a whole call, or a part of it."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Shelf_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "calque._hot.Shelf",
    .tp_doc = "Memory in which the members of a group meet.",
    .tp_basicsize = sizeof(Shelf),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = shelf_methods,
    .tp_new = shelf_create,
    .tp_dealloc = shelf_destroy,
};
