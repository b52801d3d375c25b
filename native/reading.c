/* Numbers that Python reads while operations are computed: nothing is pending then, so a read is a look into memory, and a count of who looked. */
#include "kernels.h"
#include "eager.h"

static PyObject *sites, *unreported, *loose_name, *class_name, *index_reason;

/* set_reading(Causes.sites, errors that nobody has seen yet) */
PyObject *set_reading(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &sites, &unreported)) return NULL;
    loose_name = PyUnicode_InternFromString("loose");
    class_name = PyUnicode_InternFromString("__class__");
    index_reason = PyUnicode_InternFromString("index");
    Py_INCREF(args); /* keeps both */
    Py_RETURN_NONE;
}

/* As `flushed` of `observe/causes.py`, of a line that is counted already: 1; 0 if it is Python's, -1 with an error. */
static int counted(PyObject *reason) {
    PyCodeObject *code;
    int position;
    if (!user_site(&code, &position)) return PyErr_Occurred() ? -1 : 0;
    PyObject *id = PyLong_FromVoidPtr(code), *at = PyLong_FromLong(position), *key = id == NULL || at == NULL ? NULL : PyTuple_Pack(3, reason, id, at);
    PyObject *site = key == NULL ? NULL : PyDict_GetItemWithError(sites, key);
    int answer = PyErr_Occurred() ? -1 : 0;
    if (site != NULL) {
        PyObject *times = PyNumber_Add(PyList_GET_ITEM(site, 0), known.one);
        answer = times == NULL || PyList_SetItem(site, 0, times) < 0 ? -1 : 1;
    }
    Py_XDECREF(key);
    Py_XDECREF(id);
    Py_XDECREF(at);
    Py_DECREF(code);
    return answer;
}

/* The only element of an array at a place, as one of Python's; NULL without an error of other types. */
static PyObject *element(PyArrayObject *array, Py_ssize_t offset) {
    char *at = PyArray_BYTES(array) + offset * PyArray_ITEMSIZE(array);
    switch (PyArray_TYPE(array)) {
        case NPY_BOOL: return PyBool_FromLong(*(npy_bool *)at);
        case NPY_UINT8: return PyLong_FromLong(*(npy_uint8 *)at);
        case NPY_INT32: return PyLong_FromLong(*(npy_int32 *)at);
        case NPY_INT64: return PyLong_FromLongLong(*(npy_int64 *)at);
        case NPY_FLOAT32: return PyFloat_FromDouble(*(npy_float32 *)at);
        case NPY_FLOAT64: return PyFloat_FromDouble(*(npy_float64 *)at);
        default: return NULL;
    }
}

/* The number in a tensor of one element, if operations are computed and nothing is in the way; NULL without an error where Python is to do it. */
static PyObject *number_of(PyObject *t, PyObject *reason) {
    if (known.local == NULL || sites == NULL || !is_tensor(t)) return NULL;
    PyObject *state = current_state();
    if (state == NULL) return NULL;
    PyObject *trace = AT(state, State.at.trace), *found = NULL;
    if (Py_IS_TYPE(trace, eager_type) && possible(state) && PyList_GET_SIZE(unreported) == 0) {
        PyObject *view = AT(t, Tensor.at._layout), *shape = AT(view, Layout.at.shape), *buffer = AT(AT(t, Tensor.at._storage), Storage.at.buffer);
        PyArrayObject *array = memory_of(t);
        bool single = array != NULL && AT(buffer, Buffer.at.made) == known.zero
            && (PyObject *)PyArray_DESCR(array) == AT(AT(view, Layout.at.dtype), DType.at.np);
        for (Py_ssize_t d = 0; single && d < PyTuple_GET_SIZE(shape); d++) single = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, d)) == 1;
        Py_ssize_t offset = single ? PyLong_AsSsize_t(AT(view, Layout.at.offset)) : 0;
        if (single && offset < PyArray_SIZE(array)) found = element(array, offset);
        if (found != NULL && (counted(reason) != 1 || PyObject_SetAttr(trace, loose_name, Py_False) < 0)) Py_CLEAR(found);
    }
    Py_DECREF(state);
    return found;
}

/* number(t, reason): the only element of a tensor, as one of Python's numbers, or None where Python is to read it. */
PyObject *read_element(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *found = count == 2 ? number_of(args[0], args[1]) : NULL;
    return found == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : found;
}

/* Whether `x.__class__` is int: sizes of a program that is exported say so, and stay what they are. */
static bool is_int(PyObject *x) {
    if (PyLong_CheckExact(x)) return true;
    PyObject *kind = PyObject_GetAttr(x, class_name);
    bool answer = kind == (PyObject *)&PyLong_Type;
    if (kind == NULL) PyErr_Clear();
    Py_XDECREF(kind);
    return answer;
}

static PyObject *bound(PyObject *value) { return value == Py_None || is_int(value) ? Py_NewRef(value) : PyNumber_Index(value); }

/* One item of an index, as it stands in a key; NULL without an error if it is none that a view is made by. */
static PyObject *item_key(PyObject *item, bool read) {
    if (PyLong_CheckExact(item) || item == Py_None || item == Py_Ellipsis) return Py_NewRef(item);
    if (PySlice_Check(item)) {
        PySliceObject *part = (PySliceObject *)item;
        PyObject *start = bound(part->start), *stop = start == NULL ? NULL : bound(part->stop), *step = stop == NULL ? NULL : bound(part->step);
        PyObject *found = step == NULL ? NULL : PyTuple_Pack(3, start, stop, step);
        Py_XDECREF(start);
        Py_XDECREF(stop);
        Py_XDECREF(step);
        return found;
    }
    if (PyArray_IsScalar(item, Integer)) return PyNumber_Index(item);
    if (!is_tensor(item)) return is_int(item) ? Py_NewRef(item) : NULL;
    if (!read) return NULL;
    PyObject *view = AT(item, Tensor.at._layout);
    PyArrayObject *array = PyTuple_GET_SIZE(AT(view, Layout.at.shape)) == 0 ? memory_of(item) : NULL;
    return array != NULL && PyTypeNum_ISSIGNED(PyArray_TYPE(array)) && PyTypeNum_ISINTEGER(PyArray_TYPE(array)) ? number_of(item, index_reason) : NULL;
}

/* basic_key(items, read): as that of `functional/indexing.py`. */
PyObject *index_key(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || !PyTuple_CheckExact(args[0])) { PyErr_SetString(PyExc_TypeError, "basic_key takes a tuple and a truth"); return NULL; }
    Py_ssize_t size = PyTuple_GET_SIZE(args[0]);
    PyObject *key = PyTuple_New(size);
    for (Py_ssize_t k = 0; key != NULL && k < size; k++) {
        PyObject *found = item_key(PyTuple_GET_ITEM(args[0], k), args[1] == Py_True);
        if (found == NULL) {
            Py_DECREF(key);
            return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
        }
        PyTuple_SET_ITEM(key, k, found);
    }
    return key;
}
