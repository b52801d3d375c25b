/* Recording: what `unary`, `binary` and `record` of `tensor.py` do where the edge is known, or new and nothing is unusual, without a frame of Python for
any of it.

Each gives None where it does not know what to do (an operation that is computed at once, other types, a number that is new): nothing has happened then that Python would not
find as it was, and the twin in `tensor.py` does the whole again. */
#include "handles.h"
#include "eager.h"

/* Slot of a tensor's value in a trace; a new reference. `operands`: all of an ordered operation, else the empty tuple. */
static PyObject *slot_in(PyObject *trace, PyObject *t, PyObject *operands) {
    PyObject *storage = AT(t, Tensor.at._storage), *view = AT(t, Tensor.at._layout);
    if (AT(storage, Storage.at.trace) == trace) {
        if (AT(storage, Storage.at.layout) == view) return Py_NewRef(AT(storage, Storage.at.slot));
        PyObject *cache = AT(t, Tensor.at._cache);
        if (AT(view, Layout.at.upright) == Py_True && PyTuple_CheckExact(cache) && PyTuple_GET_SIZE(cache) == 3 && PyTuple_GET_ITEM(cache, 0) == trace) {
            bool upright = true;
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(operands); k++) {
                PyObject *x = PyTuple_GET_ITEM(operands, k);
                if (!PyTuple_CheckExact(x) && AT(AT(x, Tensor.at._layout), Layout.at.upright) != Py_True) upright = false;
            }
            int same = upright ? PyObject_RichCompareBool(PyTuple_GET_ITEM(cache, 1), AT(storage, Storage.at.slot), Py_EQ) : 0;
            if (same < 0) return NULL;
            if (same) return Py_NewRef(PyTuple_GET_ITEM(cache, 2));
        }
    }
    PyObject *args[3] = {trace, t, operands};
    return PyObject_Vectorcall(known.slot_of, args, 3, NULL);
}

/* The result of an edge that was just followed, with a number that it takes or NULL. */
static PyObject *finish(PyObject *trace, PyObject *edge, PyObject *number) {
    PyObject *slot = AT(trace, Trace.at.n), *view = AT(edge, Edge.at.layout);
    PyObject *storage = new_storage(trace, slot, view, Py_None);
    if (storage == NULL) return NULL;
    PyObject *next = PyLong_FromSsize_t(PyLong_AsSsize_t(slot) + 1);
    PyObject *t = next == NULL ? NULL : new_tensor(Py_NewRef(storage), view);
    bool ok = t != NULL && (number == NULL || PyList_Append(AT(trace, Trace.at.scalars), number) == 0)
        && PyList_Append(AT(trace, Trace.at.storages), storage) == 0;
    Py_DECREF(storage);
    if (!ok) { Py_XDECREF(next); Py_XDECREF(t); return NULL; }
    replace(trace, Trace.at.n, next);
    replace(trace, Trace.at.cur, Py_NewRef(edge));
    if (PyObject_IsTrue(AT(edge, Edge.at.boundary)) == 1) {
        PyObject *done = PyObject_CallOneArg(known.flush, known.bound);
        if (done == NULL) { Py_DECREF(t); return NULL; }
        Py_DECREF(done);
    }
    return t;
}

static inline bool grad_mode(PyObject *state) { return AT(state, State.at.grad) == Py_True; }
static inline bool needs(PyObject *t) { return AT(t, Tensor.at._requires_grad) == Py_True; }

/* The edge of a key, which is taken; NULL with no error set if there is none. A new reference. */
static PyObject *followed(PyObject *trace, PyObject *key) {
    if (key == NULL) return NULL;
    PyObject *edge = PyDict_GetItemWithError(AT(AT(trace, Trace.at.cur), Edge.at.next), key);
    Py_DECREF(key);
    return Py_XNewRef(edge);
}

static inline PyObject *nothing(void) { return PyErr_Occurred() ? NULL : Py_NewRef(Py_None); }

/* binary(op, memo, a, b) */
PyObject *record_binary(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *op = args[0], *a = args[2], *b = args[3], *edge = NULL, *out = NULL, *number = NULL, *real = NULL;
    if (count != 4 || known.local == NULL || !is_tensor(a)) return Py_NewRef(Py_None);
    bool two = is_tensor(b), whole = !two && PyLong_CheckExact(b);
    if (!two && !whole && !PyFloat_CheckExact(b) && !PyComplex_CheckExact(b)) return Py_NewRef(Py_None);
    PyObject *dtype = AT(AT(a, Tensor.at._layout), Layout.at.dtype);
    long category = two ? 0 : PyLong_AsLong(AT(dtype, DType.at.category));
    /* Both are integers, or a number counts as a complex one: the result is of the tensor's type; recorded by Python. */
    bool integers = whole && category == 1, complex = !two && category == 3;
    if (two ? AT(AT(b, Tensor.at._layout), Layout.at.dtype) != dtype : !integers && !complex && (category != 2 || PyComplex_CheckExact(b)))
        return Py_NewRef(Py_None);
    if (whole && category == 2) { /* an integer beside floats counts as one; Python says what is wrong with one that is too large */
        double value = PyLong_AsDouble(b);
        b = real = value == -1.0 && PyErr_Occurred() ? NULL : PyFloat_FromDouble(value);
        if (b == NULL) { PyErr_Clear(); return Py_NewRef(Py_None); }
    }
    PyObject *state = current_state();
    if (state == NULL) { Py_XDECREF(real); return NULL; }
    PyObject *trace = AT(state, State.at.trace);
    if (integers || complex || !Py_IS_TYPE(trace, Trace.type)) {
        if (Py_IS_TYPE(trace, eager_type)) out = eager_binary(state, op, args[1], a, b, two);
        Py_XDECREF(real);
        Py_DECREF(state);
        return out == NULL ? nothing() : out;
    }
    Py_INCREF(trace);
    PyObject *given[2] = {a, b};
    bool ordered = AT(op, Op.at.ordered) == Py_True;
    PyObject *operands = !ordered ? Py_NewRef(known.empty_tuple) : two ? PyTuple_Pack(2, a, b) : PyTuple_Pack(1, a);
    PyObject *i = operands == NULL ? NULL : slot_in(trace, a, operands), *j = NULL;
    if (i != NULL && two) {
        j = slot_in(trace, b, operands);
        if (j != NULL) edge = followed(trace, PyTuple_Pack(3, op, i, j));
        if (edge == NULL && j != NULL && !PyErr_Occurred() && is_usual(args[1], a, b)) {
            PyObject *key = PyTuple_Pack(3, op, i, j), *slots = PyTuple_Pack(2, i, j);
            if (key != NULL && slots != NULL) edge = grown(state, trace, key, op, slots, known.empty_tuple, given);
            Py_XDECREF(key);
            Py_XDECREF(slots);
        }
    } else if (i != NULL) {
        double value = PyFloat_AS_DOUBLE(b);
        PyObject *tag = value == 0.0 ? NULL : PyDict_GetItemWithError(known.baked, b);
        j = tag != NULL ? Py_NewRef(tag) : PyObject_CallOneArg(known.scalar_tag, b);
        if (j != NULL) edge = followed(trace, PyTuple_Pack(3, op, i, j));
        if (edge == NULL && j != NULL && !PyErr_Occurred()) { /* a place that has met several numbers */
            Py_SETREF(j, Py_NewRef(known.tag_s));
            edge = followed(trace, PyTuple_Pack(3, op, i, j));
        }
        if (edge != NULL && PyObject_RichCompareBool(j, known.tag_s, Py_EQ) == 1) number = b;
    }
    if (edge != NULL) {
        out = finish(trace, edge, number);
        if (out != NULL && grad_mode(state) && (needs(a) || (two && needs(b))) && !attach(out, edge, op, given, 2)) Py_CLEAR(out);
    }
    Py_XDECREF(real);
    Py_XDECREF(i);
    Py_XDECREF(j);
    Py_XDECREF(edge);
    Py_XDECREF(operands);
    Py_DECREF(trace);
    Py_DECREF(state);
    return out == NULL ? nothing() : out;
}

/* unary(op, memo, input) */
PyObject *record_unary(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *op = args[0], *a = args[2], *edge = NULL, *out = NULL;
    if (count != 3 || known.local == NULL || !is_tensor(a)) return Py_NewRef(Py_None);
    PyObject *state = current_state();
    if (state == NULL) return NULL;
    PyObject *trace = AT(state, State.at.trace);
    if (!Py_IS_TYPE(trace, Trace.type)) {
        if (Py_IS_TYPE(trace, eager_type)) out = eager_unary(state, op, args[1], a);
        Py_DECREF(state);
        return out == NULL ? nothing() : out;
    }
    Py_INCREF(trace);
    PyObject *operands = AT(op, Op.at.ordered) == Py_True ? PyTuple_Pack(1, a) : Py_NewRef(known.empty_tuple);
    PyObject *i = operands == NULL ? NULL : slot_in(trace, a, operands);
    if (i != NULL) edge = followed(trace, PyTuple_Pack(2, op, i));
    if (edge == NULL && i != NULL && !PyErr_Occurred() && is_usual(args[1], a, NULL)) {
        PyObject *key = PyTuple_Pack(2, op, i), *slots = PyTuple_Pack(1, i);
        if (key != NULL && slots != NULL) edge = grown(state, trace, key, op, slots, known.empty_tuple, &a);
        Py_XDECREF(key);
        Py_XDECREF(slots);
    }
    if (edge != NULL) {
        out = finish(trace, edge, NULL);
        if (out != NULL && needs(a) && grad_mode(state) && !attach(out, edge, op, &a, 1)) Py_CLEAR(out);
    }
    Py_XDECREF(i);
    Py_XDECREF(edge);
    Py_XDECREF(operands);
    Py_DECREF(trace);
    Py_DECREF(state);
    return out == NULL ? nothing() : out;
}

/* record(op, operands, attrs, row_major); operands that are numbers, as pairs with their type, only where operations are computed at once. */
PyObject *record_general(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *op = args[0], *operands = args[1], *attrs = args[2], *out = NULL, *edge = NULL;
    if (count != 4 || known.local == NULL || !PyTuple_CheckExact(operands)) return Py_NewRef(Py_None);
    Py_ssize_t size = PyTuple_GET_SIZE(operands);
    bool wanted = false, numbers = false;
    for (Py_ssize_t k = 0; k < size; k++) {
        PyObject *x = PyTuple_GET_ITEM(operands, k);
        if (PyTuple_CheckExact(x) && PyTuple_GET_SIZE(x) == 2) { numbers = true; continue; }
        if (!is_tensor(x)) return Py_NewRef(Py_None);
        wanted = wanted || needs(x);
    }
    PyObject *state = current_state();
    if (state == NULL) return NULL;
    PyObject *trace = AT(state, State.at.trace);
    if (!Py_IS_TYPE(trace, Trace.type)) {
        if (Py_IS_TYPE(trace, eager_type)) out = eager_record(state, op, operands, attrs, args[3]);
        Py_DECREF(state);
        return out == NULL ? nothing() : out;
    }
    if (numbers) { Py_DECREF(state); return Py_NewRef(Py_None); }
    Py_INCREF(trace);
    PyObject *together = AT(op, Op.at.ordered) == Py_True && args[3] != Py_True ? operands : known.empty_tuple;
    PyObject *sources = PyTuple_New(size), *device = AT(state, State.at.device);
    for (Py_ssize_t k = 0; sources != NULL && k < size; k++) {
        PyObject *slot = slot_in(trace, PyTuple_GET_ITEM(operands, k), together);
        if (slot == NULL) { Py_CLEAR(sources); break; }
        PyTuple_SET_ITEM(sources, k, slot);
    }
    if (sources != NULL) {
        PyObject *there = device == Py_None ? Py_NewRef(attrs) : PyTuple_Pack(2, attrs, device);
        PyObject *key = there == NULL ? NULL : PyTuple_Pack(3, op, sources, there);
        if (key != NULL) edge = followed(trace, Py_NewRef(key));
        if (edge == NULL && key != NULL && !PyErr_Occurred()) edge = grown(state, trace, key, op, sources, attrs, &PyTuple_GET_ITEM(operands, 0));
        Py_XDECREF(key);
        Py_XDECREF(there);
    }
    if (edge != NULL && AT(edge, Edge.at.op) == op) { /* else its offset is a run-time argument */
        out = finish(trace, edge, NULL);
        if (out != NULL && wanted && grad_mode(state) && !attach(out, edge, op, &PyTuple_GET_ITEM(operands, 0), size)) Py_CLEAR(out);
    }
    Py_XDECREF(sources);
    Py_XDECREF(edge);
    Py_DECREF(trace);
    Py_DECREF(state);
    return out == NULL ? nothing() : out;
}

/* prim(name, *arguments): as `prim` of `functional/common.py`. */
PyObject *record_named(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    PyObject *op = count == 0 ? NULL : PyDict_GetItemWithError(known.primitives, args[0]);
    if (op == NULL) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, count == 0 ? Py_None : args[0]);
        return NULL;
    }
    Py_ssize_t given = count - 1 - PyTuple_GET_SIZE(AT(op, Op.at.attrs));
    if (given < 0) given = 0; /* the record's rules say what is missing */
    PyObject *operands = PyTuple_New(given), *attrs = operands == NULL ? NULL : PyTuple_New(count - 1 - given), *out = NULL;
    if (attrs != NULL) {
        for (Py_ssize_t k = 0; k < count - 1; k++)
            PyTuple_SET_ITEM(k < given ? operands : attrs, k < given ? k : k - given, Py_NewRef(args[1 + k]));
        PyObject *all[4] = {op, operands, attrs, Py_False};
        out = record_general(module, all, 4);
        if (out == Py_None) {
            Py_DECREF(out);
            out = PyObject_Vectorcall(known.recorded, all, 4, NULL);
        }
    }
    Py_XDECREF(operands);
    Py_XDECREF(attrs);
    return out;
}
