/* Operations that are computed where they are written. A `Step` of `autograd/eager.py` that has a kernel is run here, from the operands' memory to the
   handle of the result with its node; every other one is Python's. */
#include "kernels.h"
#include "eager.h"

PyTypeObject *eager_type;
static PyObject *steps, *known_steps, *step_for, *array_twin, *made_twin, *applied_edge, *site_edge, *settings, *tracing, *active_name, *last_name;
static Py_ssize_t kernel_at;

/* set_eager(Eager, Step, steps, known_steps, step_for, array, made, edge, edge_at, settings, names of the module `trace`) */
PyObject *set_eager(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *type, *step;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &type, &step, &steps, &known_steps, &step_for, &array_twin, &made_twin, &applied_edge, &site_edge,
                          &settings, &tracing))
        return NULL;
    PyObject *member = PyObject_GetAttrString(step, "kernel");
    if (member == NULL) return NULL;
    kernel_at = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    active_name = PyUnicode_InternFromString("active");
    last_name = PyUnicode_InternFromString("last");
    Py_INCREF(args); /* keeps all of them */
    eager_type = (PyTypeObject *)type;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------------------------------- steps that are known */

/* The layout of a tensor without its offset, of which steps know nothing. */
PyObject *origin_of(PyObject *t) {
    PyObject *view = AT(t, Tensor.at._layout), *origin = AT(view, Layout.at.origin);
    return origin == Py_None ? view : origin;
}

#define MEMORY 256

static Py_ssize_t remembered; /* entries of all memos */

typedef struct { PyObject *first, *second, *step; } Known_Step;
typedef struct { PyObject_HEAD PyObject *unusual; Known_Step known[MEMORY]; } Memo;

static PyObject *memo_create(PyTypeObject *type, PyObject *args, PyObject *names) {
    (void)names;
    PyObject *unusual;
    if (!PyArg_ParseTuple(args, "O", &unusual)) return NULL;
    Memo *memo = (Memo *)type->tp_alloc(type, 0);
    if (memo != NULL) memo->unusual = Py_NewRef(unusual);
    return (PyObject *)memo;
}

/* Whether a recording function has nothing to say of these operands itself. */
bool is_usual(PyObject *memo, PyObject *a, PyObject *b) {
    PyObject *unusual = ((Memo *)memo)->unusual;
    if (unusual == Py_None) return true;
    PyObject *found = PyObject_CallFunctionObjArgs(unusual, a, b, NULL);
    bool usual = found != NULL && PyObject_IsTrue(found) == 0;
    Py_XDECREF(found);
    return usual;
}

static void forget(Memo *memo) {
    for (int k = 0; k < MEMORY; k++) {
        if (memo->known[k].first != NULL) remembered--;
        Py_CLEAR(memo->known[k].first);
        Py_CLEAR(memo->known[k].second);
        Py_CLEAR(memo->known[k].step);
    }
}

static void memo_destroy(PyObject *self) {
    forget((Memo *)self);
    Py_XDECREF(((Memo *)self)->unusual);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *memo_forget(PyObject *self, PyObject *none) {
    (void)none;
    forget((Memo *)self);
    Py_RETURN_NONE;
}

/* remembered(): entries of all memos. */
PyObject *memo_entries(PyObject *module, PyObject *none) {
    (void)module;
    (void)none;
    return PyLong_FromSsize_t(remembered);
}

static PyMethodDef memo_methods[] = {{"forget", memo_forget, METH_NOARGS, "Forget all steps."}, {NULL, NULL, 0, NULL}};

PyTypeObject Memo_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "calque._hot.Memo",
    .tp_doc = "The steps that one recording function has met, by the layouts of its operands.",
    .tp_basicsize = sizeof(Memo),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = memo_methods,
    .tp_new = memo_create,
    .tp_dealloc = memo_destroy,
};

/* The step of an operation; `second`: layout of the second operand, dtype of one that is a number, or NULL. Borrowed; NULL: Python is to do it. */
static PyObject *recall(PyObject *object, PyObject *op, PyObject *first, PyObject *second) {
    Memo *memo = (Memo *)object;
    size_t hash = ((size_t)first >> 4) * 31 + ((size_t)second >> 4);
    Known_Step *entry = &memo->known[(hash ^ (hash >> 7)) % MEMORY];
    if (entry->first != first || entry->second != second) {
        PyObject *args[4] = {op, first, second == NULL ? Py_None : second, memo->unusual};
        PyObject *key = PyTuple_Pack(4, op, first, args[2], memo->unusual);
        PyObject *step = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(known_steps, key));
        Py_XDECREF(key);
        if (step == NULL && !PyErr_Occurred()) step = PyObject_Vectorcall(step_for, args, 4, NULL);
        if (step == NULL) return NULL;
        if (entry->first == NULL) remembered++;
        Py_XSETREF(entry->first, Py_NewRef(first));
        Py_XSETREF(entry->second, Py_XNewRef(second));
        Py_XSETREF(entry->step, step);
    }
    return entry->step == Py_False ? NULL : entry->step;
}

/* ------------------------------------------------------------------------------------------------------------------ values */

/* The memory of a storage, or NULL. */
PyArrayObject *memory_in(PyObject *storage) {
    PyObject *buffer = AT(storage, Storage.at.buffer);
    if (buffer == Py_None || AT(buffer, Buffer.at.task) != Py_None) return NULL;
    PyObject *array = AT(buffer, Buffer.at.array);
    return PyArray_CheckExact(array) && PyArray_ISALIGNED((PyArrayObject *)array) ? (PyArrayObject *)array : NULL;
}

PyArrayObject *memory_of(PyObject *t) { return memory_in(AT(t, Tensor.at._storage)); }

PyObject *new_buffer(PyObject *array) {
    PyObject *b = array == NULL ? NULL : new_object(Buffer.type);
    if (b == NULL) { Py_XDECREF(array); return NULL; }
    AT(b, Buffer.at.array) = array;
    put(b, Buffer.at.task, Py_None);
    put(b, Buffer.at.owner, Py_None);
    put(b, Buffer.at.export, Py_None);
    put(b, Buffer.at.trace, Py_None);
    put(b, Buffer.at.number, known.minus_one);
    put(b, Buffer.at.readers, Py_None);
    put(b, Buffer.at.pins, known.zero);
    put(b, Buffer.at.floating, Py_False);
    put(b, Buffer.at.made, known.zero);
    return b;
}

/* A tensor over a flat array, which it takes over. */
PyObject *tensor_over(PyObject *flat, PyObject *memory, PyObject *layout) {
    PyObject *b = new_buffer(flat);
    if (b == NULL) return NULL;
    PyObject *storage = new_storage(Py_None, known.minus_one, memory, b);
    Py_DECREF(b);
    return new_tensor(storage, layout);
}

/* The edge of a node that is made now, by the user's line, as `Step.edge`. */
static PyObject *edge_of(PyObject *state, PyObject *step, Kernel *kernel) {
    if (AT(state, State.at.applied) != Py_None) return PyObject_CallOneArg(applied_edge, step);
    PyCodeObject *code;
    int position;
    if (!user_site(&code, &position)) return PyErr_Occurred() ? NULL : PyObject_CallFunction(site_edge, "OOi", step, Py_None, 0);
    for (int k = 0; k < PLACES; k++)
        if (kernel->places[k].code == (PyObject *)code && kernel->places[k].position == position) {
            Py_DECREF(code);
            return Py_NewRef(kernel->places[k].edge);
        }
    PyObject *at = PyLong_FromLong(position);
    PyObject *args[3] = {step, (PyObject *)code, at};
    PyObject *edge = at == NULL ? NULL : PyObject_Vectorcall(site_edge, args, 3, NULL);
    Py_XDECREF(at);
    if (edge == NULL) { Py_DECREF(code); return NULL; }
    Place *place = &kernel->places[kernel->next_place++ % PLACES];
    Py_XSETREF(place->code, (PyObject *)code);
    Py_XSETREF(place->edge, Py_NewRef(edge));
    place->position = position;
    return edge;
}

/* As `possible` of `record/at_once.py`, of what may change while operations are computed. */
bool possible(PyObject *state) {
    return AT(state, State.at.device) == Py_None && AT(state, State.at.capture) == Py_None && AT(settings, Settings.at.checked) == Py_False
        && AT(settings, Settings.at.deterministic) == Py_False && AT(settings, Settings.at.sync) == Py_False
        && AT(settings, Settings.at.eager) != known.zero && PyDict_GetItemWithError(tracing, active_name) == Py_None;
}

/* Have a check look at a tensor that has just been made, if it may be the code of one; false: an error. */
bool may_be_code(PyObject *trace, PyObject *t) {
    PyObject *layout = AT(t, Tensor.at._layout), *descr = AT(AT(layout, Layout.at.dtype), DType.at.np);
    if (PyTuple_GET_SIZE(AT(layout, Layout.at.shape)) > 0 || !PyArray_DescrCheck(descr) || ((PyArray_Descr *)descr)->type_num != NPY_LONG) return true;
    return PyObject_SetAttr(trace, last_name, t) == 0;
}

/* Run a step. Operands that are no tensors are numbers. */
static PyObject *compute(PyObject *state, PyObject *op, PyObject *step, PyObject *const *operands, Py_ssize_t count) {
    PyObject *object = AT(step, kernel_at);
    if (object == NULL || object == Py_None) return NULL;
    Kernel *kernel = (Kernel *)object;
    if (kernel->inputs != count) return NULL;
    char *pointers[MOST_INPUTS + 1];
    double numbers[MOST_INPUTS][2];
    bool wanted = false, beside = false; /* a number beside complex ones, which nodes have as a tensor */
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *x = operands[k];
        if (is_tensor(x)) {
            PyArrayObject *array = memory_of(x);
            if (array == NULL) return NULL;
            pointers[k] = element_of(array, kernel->types[k], PyLong_AsSsize_t(AT(AT(x, Tensor.at._layout), Layout.at.offset)));
            if (pointers[k] == NULL) return NULL;
            wanted = wanted || AT(x, Tensor.at._requires_grad) == Py_True;
        } else {
            pointers[k] = (char *)numbers[k];
            if (!any_number_at(x, kernel->types[k], pointers[k])) return NULL; /* Python takes it, or says what is wrong with it */
            beside = beside || PyTypeNum_ISCOMPLEX(kernel->types[k]);
        }
    }
    if (wanted && beside) return NULL;
    if (!possible(state) || (kernel->large && AT(state, State.at.waiting) == Py_None)) return NULL;
    npy_intp numel = kernel->numel;
    PyObject *flat = PyArray_SimpleNew(1, &numel, kernel->out_type);
    if (flat == NULL) return NULL;
    if (!run_kernel(kernel, pointers, PyArray_BYTES((PyArrayObject *)flat))) {
        Py_DECREF(flat);
        return PyErr_NoMemory();
    }
    PyObject *t = tensor_over(flat, kernel->memory, kernel->layout);
    if (t != NULL && kernel->out_ndim == 0 && kernel->out_type == NPY_LONG && !may_be_code(AT(state, State.at.trace), t)) Py_CLEAR(t);
    if (t != NULL && wanted && AT(state, State.at.grad) == Py_True) {
        PyObject *edge = edge_of(state, step, kernel);
        bool ok = edge != NULL && attach(t, edge, op, operands, count);
        Py_XDECREF(edge);
        if (!ok) Py_CLEAR(t);
    }
    return t;
}

/* The same of a borrowed step, which other threads may forget meanwhile. */
static PyObject *computed(PyObject *state, PyObject *op, PyObject *step, PyObject *const *operands, Py_ssize_t count) {
    if (step == NULL) return NULL;
    Py_INCREF(step);
    PyObject *out = compute(state, op, step, operands, count);
    Py_DECREF(step);
    return out;
}

PyObject *eager_unary(PyObject *state, PyObject *op, PyObject *memo, PyObject *a) {
    PyObject *step = recall(memo, op, origin_of(a), NULL);
    return computed(state, op, step, &a, 1);
}

PyObject *eager_binary(PyObject *state, PyObject *op, PyObject *memo, PyObject *a, PyObject *b, bool two) {
    PyObject *first = origin_of(a), *operands[2] = {a, b};
    PyObject *step = recall(memo, op, first, two ? origin_of(b) : AT(first, Layout.at.dtype));
    return computed(state, op, step, operands, 2);
}

PyObject *eager_record(PyObject *state, PyObject *op, PyObject *operands, PyObject *attrs, PyObject *row_major) {
    Py_ssize_t count = PyTuple_GET_SIZE(operands);
    if (count > MOST_INPUTS) return NULL;
    PyObject *key = PyTuple_New(3 + count), *plain[MOST_INPUTS];
    if (key == NULL) return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(op));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(attrs));
    PyTuple_SET_ITEM(key, 2, Py_NewRef(row_major));
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *x = PyTuple_GET_ITEM(operands, k);
        bool number = PyTuple_CheckExact(x);
        plain[k] = number ? PyTuple_GET_ITEM(x, 0) : x;
        PyTuple_SET_ITEM(key, 3 + k, Py_NewRef(number ? PyTuple_GET_ITEM(x, 1) : origin_of(x)));
    }
    PyObject *step = PyDict_GetItemWithError(steps, key);
    Py_DECREF(key);
    return computed(state, op, step, plain, count);
}

/* ------------------------------------------------------------------------------------------- between handles and arrays of NumPy */

PyObject *shown(PyArrayObject *flat, PyObject *layout) { return shown_from(flat, layout, PyLong_AsSsize_t(AT(layout, Layout.at.offset))); }

PyObject *shown_from(PyArrayObject *flat, PyObject *layout, npy_intp first) {
    PyObject *shape = AT(layout, Layout.at.shape), *strides = AT(layout, Layout.at.strides);
    Py_ssize_t ndim = PyTuple_GET_SIZE(shape), size = PyArray_ITEMSIZE(flat);
    PyArray_Descr *descr = PyArray_DESCR(flat);
    npy_intp dims[NPY_MAXDIMS], steps[NPY_MAXDIMS], offset = first * size;
    if ((PyObject *)descr != AT(AT(layout, Layout.at.dtype), DType.at.np) || descr->type_num >= NPY_NTYPES_LEGACY || ndim > NPY_MAXDIMS) return NULL;
    for (Py_ssize_t d = 0; d < ndim; d++) {
        dims[d] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, d));
        steps[d] = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, d)) * size;
        if (dims[d] == 0) return NULL;
    }
    Py_INCREF(descr);
    PyObject *found = PyArray_NewFromDescr(&PyArray_Type, descr, (int)ndim, dims, steps, PyArray_BYTES(flat) + offset, NPY_ARRAY_WRITEABLE, NULL);
    if (found == NULL || PyArray_SetBaseObject((PyArrayObject *)found, Py_NewRef((PyObject *)flat)) < 0) { Py_XDECREF(found); return NULL; }
    PyArray_UpdateFlags((PyArrayObject *)found, NPY_ARRAY_UPDATE_ALL);
    return found;
}

/* array(trace, t): the values of a tensor, where they lie; its handle remembers them. */
PyObject *eager_array(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *trace = args[0], *t = args[1];
    PyArrayObject *flat = count == 2 ? memory_of(t) : NULL;
    if (flat != NULL) {
        PyObject *cache = AT(t, Tensor.at._cache);
        if (PyTuple_CheckExact(cache) && PyTuple_GET_ITEM(cache, 1) == (PyObject *)flat && PyTuple_GET_ITEM(cache, 0) == trace)
            return Py_NewRef(PyTuple_GET_ITEM(cache, 2));
    }
    PyObject *found = flat == NULL ? NULL : shown(flat, AT(t, Tensor.at._layout));
    if (found == NULL) return PyErr_Occurred() ? NULL : PyObject_Vectorcall(array_twin, args, count, NULL);
    PyObject *cache = PyTuple_Pack(3, trace, flat, found);
    if (cache == NULL) { Py_DECREF(found); return NULL; }
    replace(t, Tensor.at._cache, cache);
    return found;
}

/* made(trace, value, view, fresh): a tensor of what a routine gave. */
PyObject *eager_made(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *value = args[1], *view = args[2];
    if (count != 4 || args[3] != Py_True || !PyArray_CheckExact(value)) return PyObject_Vectorcall(made_twin, args, count, NULL);
    PyArrayObject *array = (PyArrayObject *)value;
    if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA)) return PyObject_Vectorcall(made_twin, args, count, NULL);
    PyObject *flat;
    if (PyArray_NDIM(array) == 1)
        flat = Py_NewRef(value);
    else {
        npy_intp numel = PyArray_SIZE(array);
        PyArray_Descr *descr = PyArray_DESCR(array);
        Py_INCREF(descr);
        flat = PyArray_NewFromDescr(&PyArray_Type, descr, 1, &numel, NULL, PyArray_DATA(array), NPY_ARRAY_CARRAY, NULL);
        if (flat == NULL || PyArray_SetBaseObject((PyArrayObject *)flat, Py_NewRef(value)) < 0) { Py_XDECREF(flat); return NULL; }
    }
    PyObject *cache = PyTuple_Pack(3, args[0], flat, value), *t = tensor_over(flat, view, view);
    if (t == NULL || cache == NULL) { Py_XDECREF(t); Py_XDECREF(cache); return NULL; }
    replace(t, Tensor.at._cache, cache);
    return t;
}

/* over(owner, array, dtype, count): a flat array of so many elements over the memory of another one, kept alive by `owner` alone. */
PyObject *array_over(PyObject *module, PyObject *const *args, Py_ssize_t size) {
    (void)module;
    npy_intp count = size == 4 ? PyLong_AsSsize_t(args[3]) : -1;
    if (count < 0 || !PyArray_Check(args[1]) || !PyArray_DescrCheck(args[2])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "over takes an owner, an array, a dtype and a count");
        return NULL;
    }
    PyArrayObject *array = (PyArrayObject *)args[1];
    PyArray_Descr *descr = (PyArray_Descr *)Py_NewRef(args[2]);
    PyObject *flat = PyArray_NewFromDescr(&PyArray_Type, descr, 1, &count, NULL, PyArray_DATA(array), NPY_ARRAY_CARRAY, NULL);
    if (flat != NULL && PyArray_SetBaseObject((PyArrayObject *)flat, Py_NewRef(args[0])) < 0) Py_CLEAR(flat);
    return flat;
}
