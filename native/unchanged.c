/* Whether Python objects are as they were: what the guards of a hybridized call compare (`hybrid/guards.py`), and what lets a call be repeated in the
   memory of the one before (`hybrid/repeat.py`). Nothing here runs Python, so no other thread comes in between.

   Facts keep nothing alive, neither the objects that they are about nor keys and items: either somebody else does, or a fact about an object that
   refers to one comes first. */
#include "kernels.h"

enum { WORD, ENTRY, ITEMS, BARE };

/* WORD: the word at `at` is `wanted`; ENTRY: the dict has it under the key (NULL: nothing); ITEMS: the list has the items of the tuple; BARE: no attributes. */
typedef struct { int kind; void *at, *wanted; PyObject *key; } Fact;
/* A handle of a class with this layout, need of a gradient and layout of its storage; or (`kind` is NULL) the object `layout` itself. */
typedef struct { PyTypeObject *kind; PyObject *layout, *needs, *value; } Argument;
/* An array that stays (NULL: the number of one: of an argument or, behind those, of what a run is given). */
typedef struct { PyObject *array; Py_ssize_t number; } Source;
typedef struct { Source source; Py_ssize_t offset, count, size; } Check;
typedef struct {
    PyObject_HEAD
    Py_ssize_t facts, arguments, strangers, checks, sources;
    Fact *fact;
    Argument *argument;
    PyObject **stranger; /* storages that no argument may have; behind them those of the arguments seen so far */
    PyArrayObject **array; /* of the arguments */
    Check *check;
    Source *source;
    PyObject *held, *step;
} Unchanged;

static PyObject *unwrapped(PyObject *mapping) { /* the dict behind a mapping proxy, which stands where other objects have their first field */
    return Py_IS_TYPE(mapping, &PyDictProxy_Type) ? ((PyObject **)mapping)[sizeof(PyObject) / sizeof(PyObject *)] : mapping;
}

static bool plain_dict(PyObject *x) { /* whether looking things up there runs no code of the user's */
    return PyDict_Check(x) && Py_TYPE(x)->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript
        && Py_TYPE(x)->tp_as_mapping->mp_length == PyDict_Type.tp_as_mapping->mp_length;
}

static bool plain_key(PyObject *x) {
    return PyUnicode_CheckExact(x) || PyLong_CheckExact(x) || Py_TYPE(x)->tp_hash == PyBaseObject_Type.tp_hash;
}

static bool word(Unchanged *all, void *at, void *wanted) {
    all->fact[all->facts++] = (Fact){WORD, at, wanted, NULL};
    return true;
}

static bool function_fact(Unchanged *all, PyObject *x, PyObject *code, PyObject *defaults, PyObject *named) {
    PyFunctionObject *function = (PyFunctionObject *)x;
    return PyFunction_Check(x) && word(all, &function->func_code, code) && word(all, &function->func_defaults, defaults == Py_None ? NULL : defaults)
        && word(all, &function->func_kwdefaults, named == Py_None ? NULL : named);
}

static bool slot_fact(Unchanged *all, PyObject *x, PyObject *name, PyObject *value) {
    PyObject *member = _PyType_Lookup(Py_TYPE(x), name);
    return member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type) && word(all, (char *)x + ((PyMemberDescrObject *)member)->d_member->offset, value);
}

static bool length_fact(Unchanged *all, PyObject *x, PyObject *length) {
    x = unwrapped(x);
    void *wanted = PyLong_AsVoidPtr(length);
    if (plain_dict(x)) return word(all, &((PyDictObject *)x)->ma_used, wanted);
    return PyList_CheckExact(x) && word(all, &((PyVarObject *)x)->ob_size, wanted);
}

static bool entry_fact(Unchanged *all, PyObject *x, PyObject *key, PyObject *value) {
    x = unwrapped(x);
    all->fact[all->facts++] = (Fact){ENTRY, x, value, key};
    return plain_dict(x) && plain_key(key);
}

static bool items_fact(Unchanged *all, PyObject *x, PyObject *items) {
    all->fact[all->facts++] = (Fact){ITEMS, x, items, NULL};
    return PyList_CheckExact(x) && PyTuple_CheckExact(items);
}

static bool bare_fact(Unchanged *all, PyObject *x) {
    all->fact[all->facts++] = (Fact){BARE, x, NULL, NULL};
    return true;
}

/* (what, object, ..): one more fact; false if it cannot be looked at here. */
static bool read_fact(Unchanged *all, PyObject *item) {
    const char *what;
    PyObject *x, *a = NULL, *b = NULL, *c = NULL;
    if (!PyTuple_CheckExact(item) || !PyArg_ParseTuple(item, "sO|OOO", &what, &x, &a, &b, &c)) return false;
#define IS(name, more) (strcmp(what, name) == 0 && PyTuple_GET_SIZE(item) == 2 + more)
    if (IS("entry", 2)) return entry_fact(all, x, a, b);
    if (IS("absent", 1)) return entry_fact(all, x, a, NULL);
    if (IS("slot", 2)) return slot_fact(all, x, a, b);
    if (IS("items", 1)) return items_fact(all, x, a);
    if (IS("length", 1)) return length_fact(all, x, a);
    if (IS("cell", 1)) return PyCell_Check(x) && word(all, &((PyCellObject *)x)->ob_ref, a);
    if (IS("unassigned", 0)) return PyCell_Check(x) && word(all, &((PyCellObject *)x)->ob_ref, NULL);
    if (IS("function", 3)) return function_fact(all, x, a, b, c);
    if (IS("references", 1)) return word(all, &x->ob_refcnt, PyLong_AsVoidPtr(a));
    if (IS("kind", 0)) return word(all, &x->ob_type, Py_TYPE(x));
    if (IS("unseen", 0)) return Py_TYPE(x)->tp_weaklistoffset != 0 && word(all, (char *)x + Py_TYPE(x)->tp_weaklistoffset, NULL);
    if (IS("bare", 0)) return bare_fact(all, x);
    if (IS("data", 0)) return PyArray_CheckExact(x) && word(all, &((PyArrayObject_fields *)x)->data, PyArray_DATA((PyArrayObject *)x));
    PyErr_Format(PyExc_ValueError, "no fact is called %s, or it has something else beside it", what);
    return false;
}

static bool read_source(PyObject *item, Source *source) {
    source->array = PyLong_CheckExact(item) ? NULL : item;
    source->number = PyLong_CheckExact(item) ? PyLong_AsSsize_t(item) : 0;
    if (source->array == NULL ? source->number >= 0 : PyArray_CheckExact(item)) return true;
    PyErr_SetString(PyExc_TypeError, "expected arrays and their numbers");
    return false;
}

static bool read_argument(PyObject *item, Argument *argument) {
    PyObject *kind;
    *argument = (Argument){NULL, NULL, NULL, NULL};
    if (!PyArg_ParseTuple(item, "OO|OO", &kind, &argument->layout, &argument->needs, &argument->value)) return false;
    argument->kind = kind == Py_None ? NULL : (PyTypeObject *)kind;
    return true;
}

static bool read_check(PyObject *item, Check *check, Py_ssize_t arguments) {
    PyObject *source;
    if (!PyArg_ParseTuple(item, "Onnn", &source, &check->offset, &check->count, &check->size) || !read_source(source, &check->source)) return false;
    if (check->source.array != NULL || check->source.number < arguments) return true;
    PyErr_SetString(PyExc_IndexError, "indices are those of an argument, or of an array that stays");
    return false;
}

/* What is compared, laid out; false with an error, or without one where Python is to compare. */
static bool read_all(Unchanged *all, PyObject *facts, PyObject *arguments, PyObject *strangers, PyObject *checks, PyObject *sources) {
    Py_ssize_t count = PyTuple_GET_SIZE(arguments), others = PyTuple_GET_SIZE(strangers);
    all->fact = PyMem_Calloc(3 * PyList_GET_SIZE(facts) + 1, sizeof(Fact)); /* a function makes three */
    all->argument = PyMem_Calloc(count + 1, sizeof(Argument));
    all->array = PyMem_Calloc(count + 1, sizeof(PyArrayObject *));
    all->stranger = PyMem_Calloc(count + others + 1, sizeof(PyObject *));
    all->check = PyMem_Calloc(PyTuple_GET_SIZE(checks) + 1, sizeof(Check));
    all->source = PyMem_Calloc(PyTuple_GET_SIZE(sources) + 1, sizeof(Source));
    if (!all->fact || !all->argument || !all->array || !all->stranger || !all->check || !all->source) { PyErr_NoMemory(); return false; }
    bool ok = true;
    for (Py_ssize_t k = 0; ok && k < PyList_GET_SIZE(facts); k++) ok = read_fact(all, PyList_GET_ITEM(facts, k));
    for (; ok && all->arguments < count; all->arguments++) ok = read_argument(PyTuple_GET_ITEM(arguments, all->arguments), &all->argument[all->arguments]);
    for (; ok && all->strangers < others; all->strangers++) all->stranger[all->strangers] = PyTuple_GET_ITEM(strangers, all->strangers);
    for (; ok && all->checks < PyTuple_GET_SIZE(checks); all->checks++) ok = read_check(PyTuple_GET_ITEM(checks, all->checks), &all->check[all->checks], count);
    for (; ok && all->sources < PyTuple_GET_SIZE(sources); all->sources++) ok = read_source(PyTuple_GET_ITEM(sources, all->sources), &all->source[all->sources]);
    return ok;
}

/* unchanged(facts, arguments, strangers, checks, sources, step): an object that compares, or None where Python is to do it. */
PyObject *new_unchanged(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *facts, *arguments = known.empty_tuple, *strangers = known.empty_tuple, *checks = known.empty_tuple, *sources = known.empty_tuple, *step = Py_None;
    if (!PyArg_ParseTuple(args, "O!|O!O!O!O!O", &PyList_Type, &facts, &PyTuple_Type, &arguments, &PyTuple_Type, &strangers, &PyTuple_Type, &checks,
                          &PyTuple_Type, &sources, &step))
        return NULL;
    Unchanged *all = (Unchanged *)Unchanged_Type.tp_alloc(&Unchanged_Type, 0);
    if (all == NULL) return NULL;
    all->held = PyTuple_Pack(2, arguments, strangers);
    all->step = Py_NewRef(step);
    if (all->held != NULL && read_all(all, facts, arguments, strangers, checks, sources)) return (PyObject *)all;
    Py_DECREF(all);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static void destroy(PyObject *self) {
    Unchanged *all = (Unchanged *)self;
    void *tables[] = {all->fact, all->argument, all->array, all->stranger, all->check, all->source};
    for (size_t k = 0; k < sizeof(tables) / sizeof(*tables); k++) PyMem_Free(tables[k]);
    Py_XDECREF(all->held);
    Py_XDECREF(all->step);
    Py_TYPE(self)->tp_free(self);
}

static bool has_items(PyObject *list, PyObject *items) {
    bool same = PyList_GET_SIZE(list) == PyTuple_GET_SIZE(items);
    for (Py_ssize_t k = 0; same && k < PyTuple_GET_SIZE(items); k++) same = PyList_GET_ITEM(list, k) == PyTuple_GET_ITEM(items, k);
    return same;
}

static bool bare(PyObject *x) {
    PyObject *attributes = PyObject_GenericGetDict(x, NULL);
    bool none = attributes != NULL && PyDict_GET_SIZE(attributes) == 0;
    Py_XDECREF(attributes);
    return none;
}

static bool holds(const Fact *fact) {
    switch (fact->kind) {
    case WORD: return *(void **)fact->at == fact->wanted;
    case ENTRY: return PyDict_GetItemWithError(fact->at, fact->key) == fact->wanted && !PyErr_Occurred();
    case ITEMS: return has_items(fact->at, fact->wanted);
    default: return bare(fact->at);
    }
}

static bool all_hold(const Unchanged *all) {
    for (Py_ssize_t k = 0; k < all->facts; k++)
        if (!holds(&all->fact[k])) { PyErr_Clear(); return false; }
    return true;
}

/* The array of a value that is there, and that nobody outside sees; or NULL. */
static PyArrayObject *own_array(PyObject *buffer) {
    if (!Py_IS_TYPE(buffer, Buffer.type)) return NULL;
    PyObject *task = AT(buffer, Buffer.at.task), *array = AT(buffer, Buffer.at.array);
    if (task != Py_None && !(Py_IS_TYPE(task, Task.type) && AT(task, Task.at.done) == Py_True)) return NULL;
    if (AT(buffer, Buffer.at.owner) != Py_None || AT(buffer, Buffer.at.export) != Py_None) return NULL;
    return PyArray_CheckExact(array) ? (PyArrayObject *)array : NULL;
}

/* Whether a tensor is like the one of then, and shares its memory with nothing else in the call. */
static bool argument_stands(Unchanged *all, Py_ssize_t number, PyObject *x, Py_ssize_t seen) {
    const Argument *wanted = &all->argument[number];
    if (!Py_IS_TYPE(x, wanted->kind) || AT(x, Tensor.at._layout) != wanted->layout || AT(x, Tensor.at._requires_grad) != wanted->needs) return false;
    PyObject *storage = AT(x, Tensor.at._storage);
    if (AT(storage, Storage.at.trace) != Py_None || AT(storage, Storage.at.layout) != wanted->value) return false;
    for (Py_ssize_t k = 0; k < seen; k++)
        if (all->stranger[k] == storage) return false;
    all->stranger[seen] = storage;
    all->array[number] = own_array(AT(storage, Storage.at.buffer));
    return all->array[number] != NULL;
}

static bool within(const Check *check, PyArrayObject *array) {
    const npy_int64 *numbers = (const npy_int64 *)(PyArray_BYTES(array) + check->offset);
    for (Py_ssize_t k = 0; k < check->count; k++)
        if ((npy_uint64)numbers[k] >= (npy_uint64)check->size) return false;
    return true;
}

static bool stands(Unchanged *all, PyObject *arguments) {
    if (!PyTuple_CheckExact(arguments) || PyTuple_GET_SIZE(arguments) != all->arguments) return false;
    Py_ssize_t seen = all->strangers;
    for (Py_ssize_t k = 0; k < all->arguments; k++) {
        PyObject *x = PyTuple_GET_ITEM(arguments, k);
        if (all->argument[k].kind == NULL ? x != all->argument[k].layout : !argument_stands(all, k, x, seen++)) return false;
    }
    if (!all_hold(all)) return false;
    for (Py_ssize_t k = 0; k < all->checks; k++) {
        const Check *check = &all->check[k];
        if (!within(check, check->source.array ? (PyArrayObject *)check->source.array : all->array[check->source.number])) return false;
    }
    return true;
}

static PyObject *hold(PyObject *self, PyObject *none) {
    (void)none;
    return PyBool_FromLong(all_hold((Unchanged *)self));
}

static PyObject *stands_with(PyObject *self, PyObject *arguments) { return PyBool_FromLong(stands((Unchanged *)self, arguments)); }

/* Put the arrays of a run into a list; false with an error. */
static bool place(const Unchanged *all, PyObject *list, PyObject *given) {
    for (Py_ssize_t k = 0; k < all->sources; k++) {
        PyObject *array = all->source[k].array;
        Py_ssize_t behind = all->source[k].number - all->arguments;
        if (array == NULL && behind < 0) array = (PyObject *)all->array[all->source[k].number];
        if (array == NULL && behind >= 0 && behind < PyList_GET_SIZE(given)) array = PyList_GET_ITEM(given, behind);
        if (array == NULL) { PyErr_SetString(PyExc_IndexError, "there is no such array"); return false; }
        PyList_SET_ITEM(list, k, Py_NewRef(array));
    }
    return true;
}

/* run(arguments, scalars, given): `step(arrays, scalars)` if everything stands as it did; whether that has run. The list is there before anything is
   compared, as the collector may run when one is made. */
static PyObject *run_if(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Unchanged *all = (Unchanged *)self;
    if (count != 3 || !PyList_CheckExact(args[1]) || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "run takes a tuple of arguments, a list of numbers and one of arrays");
        return NULL;
    }
    PyObject *list = PyList_New(all->sources), *found = NULL;
    if (list == NULL) return NULL;
    if (!stands(all, args[0]))
        found = Py_NewRef(Py_False);
    else if (place(all, list, args[2])) {
        PyObject *ran = PyObject_Vectorcall(all->step, (PyObject *[]){list, args[1]}, 2, NULL);
        found = ran == NULL ? NULL : PyBool_FromLong(ran == list);
        Py_XDECREF(ran);
    }
    Py_DECREF(list);
    return found;
}

static PyMethodDef methods[] = {
    {"hold", hold, METH_NOARGS, "hold(): whether all facts are so."},
    {"stands", stands_with, METH_O, "stands(arguments): the same, and the arguments are like those of then."},
    {"run", (PyCFunction)(void (*)(void))run_if, METH_FASTCALL, "run(arguments, scalars, given): runs if all is so; whether it has."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Unchanged_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "calque._hot.Unchanged",
    .tp_doc = "Whether objects are as they were.",
    .tp_basicsize = sizeof(Unchanged),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = methods,
    .tp_dealloc = destroy,
};
