/* Writes into a tensor where operations are computed at once: what `assign` of `autograd/assign.py` and `Eager.put` do where nothing is unusual. */
#include "kernels.h"
#include "eager.h"
#include <math.h>
#include <string.h>

#define SAFE 1125899906842624.0 /* as `_SAFE` of `assign.py` */

static PyObject *writers, *silent, *cpu;

/* set_writing(edges of writes by their line, class of the views of `.data`, the device of the host) */
PyObject *set_writing(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &writers, &silent, &cpu)) return NULL;
    Py_INCREF(args); /* keeps all of them */
    Py_RETURN_NONE;
}

/* The edge that says who wrote a value, by the user's line; NULL where Python is to make it. A new reference. */
static PyObject *writer_of(PyObject *state, PyObject *whole) {
    PyCodeObject *code;
    int position;
    if (AT(state, State.at.applied) != Py_None || !user_site(&code, &position)) return NULL;
    PyObject *line = known_line(code, position), *key = line == NULL ? NULL : PyTuple_Pack(2, line, whole), *found = NULL;
    if (key != NULL) found = Py_XNewRef(PyDict_GetItemWithError(writers, key));
    Py_XDECREF(key);
    Py_DECREF(code);
    return found;
}

/* Whether a tensor shows each of its elements once, as far as that is seen at a glance. */
static bool shown_once(PyObject *view) {
    if (AT(view, Layout.at.contiguous) == Py_True) return true;
    PyObject *shape = AT(view, Layout.at.shape), *strides = AT(view, Layout.at.strides);
    npy_intp extents[MOST_DIMS], steps[MOST_DIMS], reach = 0;
    int count = 0;
    if (PyTuple_GET_SIZE(shape) > MOST_DIMS) return false;
    for (Py_ssize_t d = 0; d < PyTuple_GET_SIZE(shape); d++) {
        npy_intp extent = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, d)), step = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, d));
        if (extent == 1) continue;
        int k = count++;
        for (; k > 0 && steps[k - 1] > step; k--) { steps[k] = steps[k - 1]; extents[k] = extents[k - 1]; }
        steps[k] = step;
        extents[k] = extent;
    }
    for (int k = 0; k < count; k++) {
        if (steps[k] <= reach) return false;
        reach += (extents[k] - 1) * steps[k];
    }
    return true;
}

/* A number in the place of every element; false with an error. */
static bool fill(PyArrayObject *into, const char *number) {
    npy_intp size = PyArray_ITEMSIZE(into), count = PyArray_SIZE(into);
    if (PyArray_IS_C_CONTIGUOUS(into)) {
        char *at = PyArray_BYTES(into);
        for (npy_intp k = 0; k < count; k++) memcpy(at + k * size, number, size);
        return true;
    }
    NpyIter *rows = NpyIter_New(into, NPY_ITER_READWRITE | NPY_ITER_EXTERNAL_LOOP, NPY_KEEPORDER, NPY_NO_CASTING, NULL);
    if (rows == NULL) return false;
    NpyIter_IterNextFunc *next = NpyIter_GetIterNext(rows, NULL);
    char **at = NpyIter_GetDataPtrArray(rows);
    npy_intp *step = NpyIter_GetInnerStrideArray(rows), *length = NpyIter_GetInnerLoopSizePtr(rows);
    do {
        for (npy_intp k = 0; k < *length; k++) memcpy(*at + k * *step, number, size);
    } while (next(rows));
    return NpyIter_Deallocate(rows) == NPY_SUCCEED;
}

/* Whether nobody but a storage has its memory, so that values may change where they lie. */
static bool own(PyObject *storage) {
    PyObject *buffer = AT(storage, Storage.at.buffer);
    return Py_REFCNT(buffer) == 1 && AT(buffer, Buffer.at.owner) == Py_None && AT(buffer, Buffer.at.export) == Py_None && AT(buffer, Buffer.at.readers) == Py_None;
}

/* Somebody writes into a storage now; false with an error. */
static bool written(PyObject *storage, PyObject *edge) {
    PyObject *version = PyNumber_Add(AT(storage, Storage.at.version), known.one);
    if (version == NULL) return false;
    replace(storage, Storage.at.trace, Py_NewRef(Py_None));
    replace(storage, Storage.at.slot, Py_NewRef(known.minus_one));
    replace(storage, Storage.at.home, Py_NewRef(Py_None));
    replace(storage, Storage.at.version, version);
    replace(storage, Storage.at.writer, Py_NewRef(edge));
    return true;
}

/* Whether a value, a tensor of the same shape and type or a number that the type holds, was written: 1; 0 where Python is to do it; -1 with an error. */
static int write_value(PyObject *state, PyObject *t, PyObject *value) {
    PyObject *view = AT(t, Tensor.at._layout), *storage = AT(t, Tensor.at._storage), *whole = AT(storage, Storage.at.layout), *base = AT(t, Tensor.at._base);
    PyObject *dtype = AT(view, Layout.at.dtype);
    PyArrayObject *memory = memory_of(t);
    if (memory == NULL || !own(storage) || !PyArray_ISWRITEABLE(memory)) return 0;
    if (AT(view, Layout.at.device) != cpu || dtype != AT(whole, Layout.at.dtype) || AT(view, Layout.at.numel) == known.zero) return 0;
    if (view != whole && PyObject_RichCompareBool(AT(view, Layout.at.numel), AT(whole, Layout.at.numel), Py_EQ)) return 0; /* the storage may get its shape */
    if (Py_IS_TYPE(AT(base == Py_None ? t : base, Tensor.at._views), (PyTypeObject *)silent) || !shown_once(view)) return 0;
    bool tensor = is_tensor(value), same = false;
    char number[8];
    PyObject *target = NULL, *source = NULL;
    if (tensor) {
        PyObject *shape = AT(AT(value, Tensor.at._layout), Layout.at.shape), *own = AT(view, Layout.at.shape);
        PyArrayObject *from = memory_of(value);
        if (from == NULL || AT(AT(value, Tensor.at._layout), Layout.at.dtype) != dtype || AT(AT(value, Tensor.at._layout), Layout.at.device) != cpu) return 0;
        if (shape != own && PyObject_RichCompareBool(shape, own, Py_EQ) != 1) return 0;
        same = from == memory && AT(value, Tensor.at._layout) == view;
        source = shown(from, AT(value, Tensor.at._layout));
    } else if (PyFloat_CheckExact(value) || PyLong_CheckExact(value)) {
        double real = PyFloat_AsDouble(value);
        if (PyErr_Occurred()) PyErr_Clear();
        else if (fabs(real) <= SAFE && !PyTypeNum_ISBOOL(PyArray_TYPE(memory)) && number_at(value, PyArray_TYPE(memory), number)) source = Py_NewRef(value);
    }
    PyObject *edge = source == NULL ? NULL : writer_of(state, whole);
    if (edge != NULL) target = shown(memory, view);
    bool begun = target != NULL && written(storage, edge);
    int done = PyErr_Occurred() ? -1 : 0;
    if (begun) {
        bool ok = tensor ? same || PyArray_CopyInto((PyArrayObject *)target, (PyArrayObject *)source) == 0 : fill((PyArrayObject *)target, number);
        done = ok ? 1 : -1;
    }
    Py_XDECREF(edge);
    Py_XDECREF(target);
    Py_XDECREF(source);
    return done;
}

static inline bool needs(PyObject *t) { return AT(t, Tensor.at._requires_grad) == Py_True; }

/* write_at_once(t, value): whether it was written into the tensor; else nothing has happened. */
PyObject *write_at_once(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || silent == NULL || known.local == NULL || !is_tensor(args[0])) Py_RETURN_FALSE;
    PyObject *state = current_state(), *base = AT(args[0], Tensor.at._base);
    if (state == NULL) return NULL;
    bool history = AT(state, State.at.grad) == Py_True
        && (needs(args[0]) || (is_tensor(args[1]) && needs(args[1])) || (base != Py_None && is_tensor(base) && needs(base)));
    int done = !history && Py_IS_TYPE(AT(state, State.at.trace), eager_type) && possible(state) ? write_value(state, args[0], args[1]) : 0;
    Py_DECREF(state);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* ------------------------------------------------------------------------------------------------------------ gradients of leaves */

/* Whether a gradient is a value in memory of its own, row-major, which `layout` shows whole. */
static bool whole(PyObject *t) {
    PyObject *view = AT(t, Tensor.at._layout);
    return AT(AT(t, Tensor.at._storage), Storage.at.layout) == view && AT(view, Layout.at.device) == cpu && memory_of(t) != NULL
        && AT(view, Layout.at.contiguous) == Py_True && AT(view, Layout.at.offset) == known.zero;
}

#define ADD(Type) for (npy_intp k = 0; k < count; k++) ((Type *)to)[k] += ((const Type *)from)[k];

/* Adds one gradient to another where that lies: 1; 0 where Python is to do it; -1 with an error. */
static int add_in_place(PyObject *state, PyObject *held, PyObject *gradient) {
    PyObject *storage = AT(held, Tensor.at._storage);
    if (!Py_IS_TYPE(held, Tensor.type) || AT(held, Tensor.at._layout) != AT(gradient, Tensor.at._layout) || !whole(held) || !own(storage)) return 0;
    PyArrayObject *into = memory_of(held), *other = memory_of(gradient);
    int type = PyArray_TYPE(into);
    if ((type != NPY_FLOAT && type != NPY_DOUBLE) || PyArray_TYPE(other) != type || !PyArray_ISWRITEABLE(into)) return 0;
    PyObject *edge = writer_of(state, AT(storage, Storage.at.layout));
    if (edge == NULL) return PyErr_Occurred() ? -1 : 0;
    bool begun = written(storage, edge);
    Py_DECREF(edge);
    if (!begun) return -1;
    npy_intp count = PyArray_SIZE(into);
    char *to = PyArray_BYTES(into);
    const char *from = PyArray_BYTES(other);
    if (type == NPY_FLOAT) { ADD(float) } else { ADD(double) }
    return 1;
}

/* Has a leaf without a gradient show the memory of one: 1; 0 where Python is to do it; -1 with an error. */
static int set_gradient(PyObject *leaf, PyObject *gradient) {
    PyObject *storage = AT(gradient, Tensor.at._storage), *buffer = AT(storage, Storage.at.buffer);
    if (AT(AT(leaf, Tensor.at._layout), Layout.at.upright) != Py_True || AT(buffer, Buffer.at.owner) != Py_None || AT(buffer, Buffer.at.export) != Py_None) return 0;
    PyObject *t = new_tensor(new_storage(Py_None, known.minus_one, AT(storage, Storage.at.layout), buffer), AT(gradient, Tensor.at._layout));
    if (t == NULL) return -1;
    replace(leaf, Tensor.at._grad, t);
    return 1;
}

/* accumulate(leaf, gradient): whether the leaf has the gradient now, as by `accumulate_grad` of `autograd/engine.py`, but for hooks; else nothing has happened. */
PyObject *accumulate(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || cpu == NULL || !is_tensor(args[0]) || !Py_IS_TYPE(args[1], Tensor.type) || !whole(args[1])) Py_RETURN_FALSE;
    PyObject *state = current_state(), *leaf = args[0], *held = AT(leaf, Tensor.at._grad);
    if (state == NULL) return NULL;
    int done = 0;
    if (AT(AT(leaf, Tensor.at._layout), Layout.at.device) == cpu && AT(state, State.at.grad) == Py_False && Py_IS_TYPE(AT(state, State.at.trace), eager_type))
        done = held == Py_None ? set_gradient(leaf, args[1]) : add_in_place(state, held, args[1]);
    Py_DECREF(state);
    return done < 0 ? NULL : PyBool_FromLong(done);
}
