/* Library functions that are computed at once and come again (`autograd/superinstruction.py`): their steps for operands of certain layouts, run one after
   the other. What lies between operands and results is memory alone, without storages and handles. */
#include "kernels.h"
#include "eager.h"

#define MOST_OPERANDS 8
#define MOST_MEMBERS 24

/* One step. `from`: where an operand comes from, an operand of the function or, behind those, the result of a step; -1: it is always the same number.
   `offset`: of the operand in that memory, in elements. Operands of the function that are numbers are (number, dtype), as everywhere. */
typedef struct { Kernel *kernel; int from[MOST_INPUTS]; npy_intp offset[MOST_INPUTS]; double number[MOST_INPUTS]; } Member;
typedef struct { int from; PyObject *layout; } Result;
typedef struct { PyObject_HEAD int operands, members, results; Member member[MOST_MEMBERS]; Result result[MOST_OPERANDS]; } Superinstruction;

static bool read_member(Superinstruction *whole, PyObject *item) {
    PyObject *kernel, *operands;
    if (!PyArg_ParseTuple(item, "O!O!", &Kernel_Type, &kernel, &PyTuple_Type, &operands)) return false;
    Member *member = &whole->member[whole->members];
    if (PyTuple_GET_SIZE(operands) != ((Kernel *)kernel)->inputs) { PyErr_SetString(PyExc_ValueError, "a kernel has another number of operands"); return false; }
    for (int k = 0; k < ((Kernel *)kernel)->inputs; k++) {
        PyObject *x = PyTuple_GET_ITEM(operands, k);
        member->from[k] = -1;
        if (!PyTuple_CheckExact(x)) {
            if (number_at(x, ((Kernel *)kernel)->types[k], (char *)&member->number[k])) continue;
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a number is not of the kernel's type");
            return false;
        }
        if (!PyArg_ParseTuple(x, "in", &member->from[k], &member->offset[k])) return false;
        if (member->from[k] < 0 || member->from[k] >= whole->operands + whole->members) { PyErr_SetString(PyExc_IndexError, "an operand comes later"); return false; }
    }
    member->kernel = (Kernel *)Py_NewRef(kernel);
    whole->members++;
    return true;
}

static bool read_result(Superinstruction *whole, PyObject *item) {
    Result *result = &whole->result[whole->results];
    PyObject *layout;
    if (!PyArg_ParseTuple(item, "iO!", &result->from, Layout.type, &layout)) return false;
    if (result->from < whole->operands || result->from >= whole->operands + whole->members) { PyErr_SetString(PyExc_IndexError, "no step has that result"); return false; }
    result->layout = Py_NewRef(layout);
    whole->results++;
    return true;
}

/* Superinstruction(operands, members, results): (kernel, ((from, offset) or number, ..)) for each step, (from, layout) for each result. */
static PyObject *super_create(PyTypeObject *type, PyObject *args, PyObject *names) {
    (void)names;
    int operands;
    PyObject *members, *results;
    if (!PyArg_ParseTuple(args, "iO!O!", &operands, &PyTuple_Type, &members, &PyTuple_Type, &results)) return NULL;
    if (operands < 0 || operands > MOST_OPERANDS || PyTuple_GET_SIZE(members) > MOST_MEMBERS || PyTuple_GET_SIZE(results) > MOST_OPERANDS) {
        PyErr_SetString(PyExc_ValueError, "more steps than there is room for");
        return NULL;
    }
    Superinstruction *whole = (Superinstruction *)type->tp_alloc(type, 0);
    if (whole == NULL) return NULL;
    whole->operands = operands;
    bool ok = true;
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(members); k++) ok = read_member(whole, PyTuple_GET_ITEM(members, k));
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(results); k++) ok = read_result(whole, PyTuple_GET_ITEM(results, k));
    if (!ok) Py_CLEAR(whole);
    return (PyObject *)whole;
}

static void super_destroy(PyObject *self) {
    Superinstruction *whole = (Superinstruction *)self;
    for (int k = 0; k < whole->members; k++) Py_DECREF(whole->member[k].kernel);
    for (int k = 0; k < whole->results; k++) Py_DECREF(whole->result[k].layout);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject Superinstruction_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "calque._hot.Superinstruction",
    .tp_doc = "The steps of a library function for operands of certain layouts.",
    .tp_basicsize = sizeof(Superinstruction),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = super_create,
    .tp_dealloc = super_destroy,
};

/* A tuple of the results; NULL without an error where Python is to compute. `arrays`: the memory of all operands and steps. */
static PyObject *run(Superinstruction *whole, PyObject *operands, PyArrayObject **arrays) {
    npy_intp start[MOST_OPERANDS + MOST_MEMBERS] = {0};
    PyObject *storages[MOST_MEMBERS] = {NULL}, *found = NULL;
    for (int k = 0; k < whole->operands; k++) {
        PyObject *x = PyTuple_GET_ITEM(operands, k);
        if (x == Py_None || PyTuple_CheckExact(x)) continue;
        if ((arrays[k] = memory_of(x)) == NULL) return NULL;
        start[k] = PyLong_AsSsize_t(AT(AT(x, Tensor.at._layout), Layout.at.offset));
    }
    for (int k = 0; k < whole->members; k++) {
        Member *member = &whole->member[k];
        Kernel *kernel = member->kernel;
        char *pointers[MOST_INPUTS + 1];
        double numbers[MOST_INPUTS];
        for (int j = 0; j < kernel->inputs; j++) {
            int from = member->from[j];
            PyArrayObject *array = from < 0 ? NULL : arrays[from];
            PyObject *x = from >= 0 && from < whole->operands ? PyTuple_GET_ITEM(operands, from) : Py_None;
            if (from < 0)
                pointers[j] = (char *)&member->number[j];
            else if (PyTuple_CheckExact(x)) {
                pointers[j] = (char *)&numbers[j];
                if (!number_at(PyTuple_GET_ITEM(x, 0), kernel->types[j], pointers[j])) { PyErr_Clear(); return NULL; }
            } else if (array == NULL || PyArray_TYPE(array) != kernel->types[j])
                return NULL;
            else
                pointers[j] = PyArray_BYTES(array) + (start[from] + member->offset[j]) * PyArray_ITEMSIZE(array);
        }
        PyArrayObject *made = (PyArrayObject *)PyArray_SimpleNew(1, &kernel->numel, kernel->out_type);
        arrays[whole->operands + k] = made;
        if (made == NULL) return NULL;
        if (!run_kernel(kernel, pointers, PyArray_BYTES(made))) return PyErr_NoMemory();
    }
    found = PyTuple_New(whole->results);
    for (int k = 0; found != NULL && k < whole->results; k++) {
        int from = whole->result[k].from - whole->operands;
        if (storages[from] == NULL) {
            PyObject *t = tensor_over(Py_NewRef(arrays[whole->operands + from]), whole->member[from].kernel->memory, whole->result[k].layout);
            if (t == NULL) { Py_CLEAR(found); break; }
            storages[from] = AT(t, Tensor.at._storage);
            PyTuple_SET_ITEM(found, k, t);
        } else {
            PyObject *t = new_tensor(Py_NewRef(storages[from]), whole->result[k].layout);
            if (t == NULL) { Py_CLEAR(found); break; }
            PyTuple_SET_ITEM(found, k, t);
        }
    }
    return found;
}

/* instructed(table, function, operands): what the function (or whatever tells it from others) gives, or None where Python is to compute it. */
PyObject *run_superinstruction(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *operands = count == 3 ? args[2] : NULL, *found = NULL;
    if (operands == NULL || !PyTuple_CheckExact(operands) || PyTuple_GET_SIZE(operands) > MOST_OPERANDS) Py_RETURN_NONE;
    PyObject *state = current_state(); /* first of all: sizes that an export looks at are not to be asked for their hash */
    bool ok = state != NULL && Py_IS_TYPE(AT(state, State.at.trace), eager_type) && possible(state);
    Py_XDECREF(state);
    PyObject *key = ok ? PyTuple_New(1 + PyTuple_GET_SIZE(operands)) : NULL;
    if (key == NULL) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    PyTuple_SET_ITEM(key, 0, Py_NewRef(args[1]));
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(operands); k++) {
        PyObject *x = PyTuple_GET_ITEM(operands, k);
        bool number = PyTuple_CheckExact(x) && PyTuple_GET_SIZE(x) == 2;
        ok = ok && (x == Py_None || number || is_tensor(x));
        PyTuple_SET_ITEM(key, 1 + k, Py_NewRef(number ? PyTuple_GET_ITEM(x, 1) : ok && x != Py_None ? origin_of(x) : Py_None));
    }
    PyObject *whole = ok ? Py_XNewRef(PyDict_GetItemWithError(args[0], key)) : NULL;
    Py_DECREF(key);
    if (whole != NULL && Py_IS_TYPE(whole, &Superinstruction_Type)) {
        Superinstruction *steps = (Superinstruction *)whole;
        PyArrayObject *arrays[MOST_OPERANDS + MOST_MEMBERS] = {NULL};
        found = run(steps, operands, arrays);
        for (int k = 0; k < steps->members; k++) Py_XDECREF(arrays[steps->operands + k]);
    }
    Py_XDECREF(whole);
    if (found == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return found;
}
