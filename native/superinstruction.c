/* Library functions and gradients that are computed at once and come again (`autograd/superinstruction.py`, `autograd/formula.py`): their steps for operands
   of certain layouts, run one after the other. What lies between operands and results is memory alone, without storages and handles. */
#include "kernels.h"
#include "eager.h"
#include <math.h>

#define MOST_OPERANDS 16
#define MOST_MEMBERS 48
#define MOST_RESULTS 24
#define MOST_KEY 64
#define MOST_NODES 16

/* Where an operand of a step comes from: an operand of the function or, behind those, the result of a step; -1: it is always the same number, which a
   kernel has as `number` and a routine as `value`. `offset`: of the operand in that memory, in elements; `layout`: how a routine sees it. Operands of the
   function that are numbers are (number, dtype), as everywhere. */
typedef struct { int from; npy_intp offset; double number; PyObject *value, *layout; } Source;

/* One step: by a kernel; by a routine, a function of arrays; or by `kept`, an array that is always the same. Or none: the elements of its operand, side by
   side, lie between `low` and `high`, else Python is to compute. `floating`: see `Buffer`. */
typedef struct { Kernel *kernel; PyObject *routine, *memory, *kept; int check, floating, inputs; Source *sources; double low, high; } Member;
/* -1: None. Of an operand: it is that operand itself, if `layout` is None, else a view of it that begins `offset` elements behind it. */
typedef struct { int from, node; npy_intp offset; PyObject *layout; } Result; /* `node`: that of the graph that it has, or -1 */

/* A node of the graph that the function makes: its name, layouts of its results, the rule (`NodeSteps` of `autograd/node_steps.py`). `next`: operands or,
   behind those, nodes, to which its gradients go, -1: none; `uses`: operands or results of steps that the rule is given; `apart`: of each, whether that is
   another handle, which keeps the memory that the operand has now; `keeps`: whether there is anything to let go behind a pass. */
typedef struct { PyObject *label, *outputs, *rule; int targets, count, keeps, *next, *uses, *apart; } Node_Steps;

/* `make`: what makes of the results what the function gives; None: it is one tensor. `guards`, of a gradient: what its operands must be, see `fits`. */
typedef struct {
    PyObject_HEAD
    int operands, members, results, nodes;
    PyObject *make, *guards;
    Member *member;
    Node_Steps *node;
    Result result[MOST_RESULTS];
} Superinstruction;

/* -------------------------------------------------------------------------------------------------------------- what is told once */

static bool read_source(Superinstruction *whole, Member *member, int k, PyObject *x) {
    Source *source = &member->sources[k];
    source->from = -1;
    if (PyTuple_CheckExact(x) && PyTuple_GET_SIZE(x) == 3) {
        if (!PyArg_ParseTuple(x, "inO!", &source->from, &source->offset, Layout.type, &source->layout)) return false;
        Py_INCREF(source->layout);
        if (source->from >= 0 && source->from < whole->operands + whole->members) return true;
        PyErr_SetString(PyExc_IndexError, "an operand comes later");
        return false;
    }
    source->value = Py_NewRef(x);
    if (member->kernel == NULL || number_at(x, member->kernel->types[k], (char *)&source->number)) return true;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a number is not of the kernel's type");
    return false;
}

static bool read_member(Superinstruction *whole, PyObject *item) {
    PyObject *how, *operands, *memory;
    int check, floating;
    if (!PyArg_ParseTuple(item, "OO!O!pp", &how, &PyTuple_Type, &operands, Layout.type, &memory, &check, &floating)) return false;
    Member *member = &whole->member[whole->members];
    member->memory = Py_NewRef(memory);
    member->check = check;
    member->floating = floating;
    whole->members++; /* from here on `super_destroy` knows it */
    if (Py_IS_TYPE(how, &Kernel_Type))
        member->kernel = (Kernel *)Py_NewRef(how);
    else if (PyArray_CheckExact(how) && PyArray_NDIM((PyArrayObject *)how) == 1)
        member->kept = Py_NewRef(how);
    else if (PyTuple_CheckExact(how)) {
        if (!PyArg_ParseTuple(how, "dd", &member->low, &member->high)) return false;
    } else
        member->routine = Py_NewRef(how);
    int count = (int)PyTuple_GET_SIZE(operands);
    member->sources = PyMem_Calloc(count + 1, sizeof(Source));
    if (member->sources == NULL) { PyErr_NoMemory(); return false; }
    if (count > MOST_OPERANDS || (member->kernel != NULL && count != member->kernel->inputs)) {
        PyErr_SetString(PyExc_ValueError, "a step has another number of operands");
        return false;
    }
    whole->members--; /* a step has no operand that is itself */
    bool ok = true;
    for (member->inputs = 0; ok && member->inputs < count; member->inputs++) ok = read_source(whole, member, member->inputs, PyTuple_GET_ITEM(operands, member->inputs));
    whole->members++;
    return ok;
}

static bool read_result(Superinstruction *whole, PyObject *item) {
    Result *result = &whole->result[whole->results];
    PyObject *layout;
    if (!PyArg_ParseTuple(item, "inOi", &result->from, &result->offset, &layout, &result->node)) return false;
    if (result->node >= whole->nodes || result->from >= whole->operands + whole->members || ((result->from >= whole->operands || layout != Py_None) && !Py_IS_TYPE(layout, Layout.type))) {
        PyErr_SetString(PyExc_IndexError, "no step has that result");
        return false;
    }
    result->layout = Py_NewRef(layout);
    whole->results++;
    return true;
}

/* Numbers below `limit`, by PyMem_Malloc; NULL with an error. */
static int *read_places(PyObject *places, int *count, int limit) {
    *count = (int)PyTuple_GET_SIZE(places);
    int *found = PyMem_Malloc((*count + 1) * sizeof(int));
    if (found == NULL) PyErr_NoMemory();
    for (int k = 0; found != NULL && k < *count; k++) {
        found[k] = (int)PyLong_AsLong(PyTuple_GET_ITEM(places, k));
        if (found[k] >= limit && !PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "a node has something that is not there");
    }
    return found;
}

static bool read_node(Superinstruction *whole, PyObject *item) {
    PyObject *next, *uses, *apart;
    Node_Steps *node = &whole->node[whole->nodes];
    if (!PyArg_ParseTuple(item, "OO!OO!O!O!p", &node->label, &PyTuple_Type, &node->outputs, &node->rule, &PyTuple_Type, &next, &PyTuple_Type, &uses, &PyTuple_Type, &apart, &node->keeps)) return false;
    Py_INCREF(node->label);
    Py_INCREF(node->outputs);
    Py_INCREF(node->rule);
    node->next = read_places(next, &node->targets, whole->operands + whole->nodes);
    node->apart = read_places(apart, &node->count, 2);
    node->uses = read_places(uses, &node->count, whole->operands + whole->members);
    if (!PyErr_Occurred() && PyTuple_GET_SIZE(apart) != node->count) PyErr_SetString(PyExc_ValueError, "a node has something of which nothing is said");
    whole->nodes++;
    return !PyErr_Occurred();
}

/* Superinstruction(operands, members, results, make, guards, nodes): (kernel, routine, array or (low, high); (from, offset, layout) or number, ..; layout of the memory; whether it is the
   code of a check; whether its buffer is floating) for each step, (from, offset, layout, node) for each result, (label, outputs, rule, next, uses, apart, keeps) for each node. */
static PyObject *super_create(PyTypeObject *type, PyObject *args, PyObject *names) {
    (void)names;
    int operands;
    PyObject *members, *results, *make, *guards, *nodes;
    if (!PyArg_ParseTuple(args, "iO!O!OOO!", &operands, &PyTuple_Type, &members, &PyTuple_Type, &results, &make, &guards, &PyTuple_Type, &nodes)) return NULL;
    if (operands < 0 || PyTuple_GET_SIZE(nodes) > MOST_NODES || operands > MOST_OPERANDS || PyTuple_GET_SIZE(members) > MOST_MEMBERS || PyTuple_GET_SIZE(results) > MOST_RESULTS) {
        PyErr_SetString(PyExc_ValueError, "more steps than there is room for");
        return NULL;
    }
    Superinstruction *whole = (Superinstruction *)type->tp_alloc(type, 0);
    if (whole == NULL) return NULL;
    whole->operands = operands;
    whole->make = Py_NewRef(make);
    whole->guards = Py_NewRef(guards);
    whole->member = PyMem_Calloc(PyTuple_GET_SIZE(members) + 1, sizeof(Member));
    whole->node = PyMem_Calloc(PyTuple_GET_SIZE(nodes) + 1, sizeof(Node_Steps));
    bool ok = (whole->member != NULL && whole->node != NULL) || PyErr_NoMemory() != NULL;
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(members); k++) ok = read_member(whole, PyTuple_GET_ITEM(members, k));
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(nodes); k++) ok = read_node(whole, PyTuple_GET_ITEM(nodes, k));
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(results); k++) ok = read_result(whole, PyTuple_GET_ITEM(results, k));
    if (!ok) Py_CLEAR(whole);
    return (PyObject *)whole;
}

static void super_destroy(PyObject *self) {
    Superinstruction *whole = (Superinstruction *)self;
    for (int k = 0; k < whole->members; k++) {
        Member *member = &whole->member[k];
        Py_XDECREF(member->kernel);
        Py_XDECREF(member->routine);
        Py_XDECREF(member->kept);
        Py_XDECREF(member->memory);
        for (int j = 0; j < member->inputs; j++) {
            Py_XDECREF(member->sources[j].value);
            Py_XDECREF(member->sources[j].layout);
        }
        PyMem_Free(member->sources);
    }
    PyMem_Free(whole->member);
    for (int k = 0; k < whole->nodes; k++) {
        Node_Steps *node = &whole->node[k];
        Py_XDECREF(node->label);
        Py_XDECREF(node->outputs);
        Py_XDECREF(node->rule);
        PyMem_Free(node->next);
        PyMem_Free(node->uses);
        PyMem_Free(node->apart);
    }
    PyMem_Free(whole->node);
    for (int k = 0; k < whole->results; k++) Py_DECREF(whole->result[k].layout);
    Py_XDECREF(whole->make);
    Py_XDECREF(whole->guards);
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

/* ---------------------------------------------------------------------------------------------------------------------- one run */

static PyObject *types, *at_offset, *default_name, *quietly_name;

static PyObject *tuple_of(PyObject *const *parts, int count) {
    PyObject *found = PyTuple_New(count);
    for (int k = 0; found != NULL && k < count; k++) PyTuple_SET_ITEM(found, k, Py_NewRef(parts[k]));
    return found;
}

/* What a run has of the operands and steps: their memory, and where an operand begins in it; or the number that an operand is. */
typedef struct {
    PyObject *operands[MOST_OPERANDS], *number[MOST_OPERANDS];
    PyArrayObject *arrays[MOST_OPERANDS + MOST_MEMBERS];
    npy_intp start[MOST_OPERANDS + MOST_MEMBERS];
} Run;

static PyArrayObject *by_kernel(Superinstruction *whole, Member *member, Run *run) {
    Kernel *kernel = member->kernel;
    char *pointers[MOST_INPUTS + 1];
    double numbers[MOST_INPUTS];
    for (int j = 0; j < kernel->inputs; j++) {
        Source *source = &member->sources[j];
        int from = source->from;
        if (from < 0) { pointers[j] = (char *)&source->number; continue; }
        PyArrayObject *array = run->arrays[from];
        if (from < whole->operands && run->number[from] != NULL) {
            pointers[j] = (char *)&numbers[j];
            if (!number_at(run->number[from], kernel->types[j], pointers[j])) return NULL;
        } else if (array == NULL || PyArray_TYPE(array) != kernel->types[j])
            return NULL;
        else
            pointers[j] = PyArray_BYTES(array) + (run->start[from] + source->offset) * PyArray_ITEMSIZE(array);
    }
    PyArrayObject *made = (PyArrayObject *)PyArray_SimpleNew(1, &kernel->numel, kernel->out_type);
    if (made != NULL && !run_kernel(kernel, pointers, PyArray_BYTES(made))) { Py_CLEAR(made); PyErr_NoMemory(); }
    return made;
}

/* Flat memory of its own with the values that a routine gave, as `Eager.made`. */
static PyArrayObject *flat_of(PyObject *value, PyObject *memory) {
    PyArray_Descr *descr = (PyArray_Descr *)AT(AT(memory, Layout.at.dtype), DType.at.np);
    npy_intp numel = PyLong_AsSsize_t(AT(memory, Layout.at.numel));
    if (!PyArray_CheckExact(value) || PyArray_DESCR((PyArrayObject *)value) != descr || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)value)
        || !PyArray_CHKFLAGS((PyArrayObject *)value, NPY_ARRAY_OWNDATA) || Py_REFCNT(value) > 1) { /* somebody else's memory, or not as it has to lie */
        Py_INCREF(descr);
        PyObject *copy = PyArray_FromAny(value, descr, 0, 0, NPY_ARRAY_CARRAY | NPY_ARRAY_ENSURECOPY | NPY_ARRAY_ENSUREARRAY, NULL);
        Py_DECREF(value);
        if ((value = copy) == NULL) return NULL;
    }
    if (PyArray_SIZE((PyArrayObject *)value) != numel) { Py_DECREF(value); return NULL; }
    if (PyArray_NDIM((PyArrayObject *)value) == 1) return (PyArrayObject *)value;
    Py_INCREF(descr);
    PyObject *flat = PyArray_NewFromDescr(&PyArray_Type, descr, 1, &numel, NULL, PyArray_DATA((PyArrayObject *)value), NPY_ARRAY_CARRAY, NULL);
    if (flat == NULL || PyArray_SetBaseObject((PyArrayObject *)flat, value) < 0) Py_CLEAR(flat);
    return (PyArrayObject *)flat;
}

static PyArrayObject *by_routine(Superinstruction *whole, Member *member, Run *run, PyObject *quietly) {
    PyObject *args[MOST_OPERANDS + 1] = {member->routine}, *value = NULL;
    bool ok = true;
    for (int j = 0; ok && j < member->inputs; j++) {
        Source *source = &member->sources[j];
        int from = source->from;
        if (from < 0)
            args[1 + j] = Py_NewRef(source->value);
        else if (from < whole->operands && run->number[from] != NULL)
            args[1 + j] = Py_NewRef(run->number[from]);
        else
            args[1 + j] = run->arrays[from] == NULL ? NULL : shown_from(run->arrays[from], source->layout, run->start[from] + source->offset);
        ok = args[1 + j] != NULL;
    }
    if (ok) value = PyObject_Vectorcall(quietly, args, member->inputs + 1, NULL);
    for (int j = 0; j < member->inputs; j++) Py_XDECREF(args[1 + j]);
    return value == NULL ? NULL : flat_of(value, member->memory);
}

#define ALL_WITHIN(Type) \
    for (npy_intp k = 0; k < count; k++) \
        if (((Type *)first)[k] < low || ((Type *)first)[k] > high) return false; \
    return true;

/* Whether all elements of a member's operand lie within its bounds, or are NaN. */
static bool within(Member *member, Run *run) {
    Source *source = &member->sources[0];
    PyArrayObject *array = member->inputs == 1 && source->from >= 0 ? run->arrays[source->from] : NULL;
    if (array == NULL) return false;
    double low = member->low, high = member->high;
    char *first = PyArray_BYTES(array) + (run->start[source->from] + source->offset) * PyArray_ITEMSIZE(array);
    npy_intp count = PyLong_AsSsize_t(AT(source->layout, Layout.at.numel));
    switch (PyArray_TYPE(array)) {
        case NPY_LONG: ALL_WITHIN(npy_int64)
        case NPY_INT: ALL_WITHIN(npy_int32)
        case NPY_UBYTE: ALL_WITHIN(npy_uint8)
        case NPY_FLOAT: ALL_WITHIN(float)
        case NPY_DOUBLE: ALL_WITHIN(double)
        default: return false;
    }
}

static PyArrayObject *copied(PyArrayObject *array) { return (PyArrayObject *)PyArray_NewCopy(array, NPY_CORDER); }

/* A routine may let other threads run, or any Python: what they take from an operand is there until the run has ended. */
static void hold(Superinstruction *whole, Run *run) {
    for (int k = 0; k < whole->operands; k++) Py_XINCREF(run->operands[k]);
}

static void let_go_of(Superinstruction *whole, Run *run) {
    for (int k = 0; k < whole->operands; k++) Py_XDECREF(run->operands[k]);
    for (int k = 0; k < whole->operands + whole->members; k++) Py_XDECREF(run->arrays[k]);
}

/* Where the operands of a function lie. */
static bool find_operands(Superinstruction *whole, Run *run) {
    for (int k = 0; k < whole->operands; k++) {
        PyObject *x = run->operands[k];
        if (PyTuple_CheckExact(x)) {
            run->number[k] = PyTuple_GET_ITEM(x, 0);
            continue;
        }
        if ((run->arrays[k] = (PyArrayObject *)Py_XNewRef(memory_of(x))) == NULL) return false;
        run->start[k] = PyLong_AsSsize_t(AT(AT(x, Tensor.at._layout), Layout.at.offset));
    }
    return true;
}

/* All steps; false, with an error or without, where Python is to compute. */
static bool run_steps(Superinstruction *whole, Run *run, PyObject *quietly) {
    for (int k = 0; k < whole->members; k++) {
        Member *member = &whole->member[k];
        if (member->kernel == NULL && member->kept == NULL && member->routine == NULL) {
            if (!within(member, run)) return false;
            continue;
        }
        PyArrayObject *made = member->kernel != NULL ? by_kernel(whole, member, run)
            : member->kept != NULL                   ? (PyArrayObject *)Py_NewRef(member->kept)
                                                     : by_routine(whole, member, run, quietly);
        run->arrays[whole->operands + k] = made;
        if (made == NULL || (member->check && *(npy_int64 *)PyArray_DATA(made) != -1)) return false; /* Python says what is wrong */
    }
    return true;
}

/* A view of an operand. */
static PyObject *view_of(Result *result, Run *run) {
    PyObject *x = run->operands[result->from], *storage = Py_IS_TYPE(x, Storage.type) ? x : AT(x, Tensor.at._storage), *layout = Py_NewRef(result->layout);
    npy_intp first = run->start[result->from] + result->offset;
    if (first != PyLong_AsSsize_t(AT(layout, Layout.at.offset))) Py_SETREF(layout, PyObject_CallFunction(at_offset, "On", layout, first));
    PyObject *t = layout == NULL ? NULL : new_tensor(Py_NewRef(storage), layout);
    Py_XDECREF(layout);
    return t;
}

/* The storage of a step's result, a borrowed one, which `storages` keeps. `own`: somebody gets it, so that it is nobody else's memory. */
static PyObject *storage_of(Superinstruction *whole, Run *run, PyObject **storages, int from, bool own) {
    if (storages[from] != NULL) return storages[from];
    Member *member = &whole->member[from];
    PyArrayObject *flat = run->arrays[whole->operands + from];
    PyObject *t = tensor_over(member->kept != NULL && own ? (PyObject *)copied(flat) : Py_NewRef(flat), member->memory, member->memory);
    if (t == NULL) return NULL;
    storages[from] = Py_NewRef(AT(t, Tensor.at._storage));
    Py_DECREF(t);
    if (member->floating) replace(AT(storages[from], Storage.at.buffer), Buffer.at.floating, Py_NewRef(Py_True));
    return storages[from];
}

/* (operands, versions of their storages, where gradients of each would go) */
static PyObject *context_of(Superinstruction *whole, Run *run) {
    PyObject *operands = tuple_of(run->operands, whole->operands), *versions = PyTuple_New(whole->operands), *targets = PyTuple_New(whole->operands);
    for (int k = 0; versions != NULL && targets != NULL && k < whole->operands; k++) {
        PyObject *x = run->operands[k], *target = Py_None, *version = known.zero;
        if (run->number[k] == NULL) {
            version = AT(AT(x, Tensor.at._storage), Storage.at.version);
            if (AT(x, Tensor.at._requires_grad) == Py_True) target = AT(x, Tensor.at._grad_fn) == Py_None ? x : AT(x, Tensor.at._grad_fn);
        }
        PyTuple_SET_ITEM(versions, k, Py_NewRef(version));
        PyTuple_SET_ITEM(targets, k, Py_NewRef(target));
    }
    PyObject *found = operands == NULL || versions == NULL || targets == NULL ? NULL : PyTuple_Pack(3, operands, versions, targets);
    Py_XDECREF(operands);
    Py_XDECREF(versions);
    Py_XDECREF(targets);
    return found;
}

/* What a node is given: by number of the operand or, below zero, of the step. */
static bool save(Superinstruction *whole, Node_Steps *node, Run *run, PyObject **storages, PyObject **saved, PyObject **versions) {
    *saved = node->count ? PyDict_New() : Py_NewRef(Py_None);
    *versions = PyTuple_New(node->count);
    for (int k = 0; *saved != NULL && *versions != NULL && k < node->count; k++) {
        int from = node->uses[k];
        bool operand = from < whole->operands;
        PyObject *value = Py_XNewRef(operand ? run->operands[from] : storage_of(whole, run, storages, from - whole->operands, false));
        if (operand && node->apart[k]) Py_SETREF(value, new_tensor(Py_NewRef(AT(value, Tensor.at._storage)), AT(value, Tensor.at._layout)));
        PyObject *key = value == NULL ? NULL : PyLong_FromLong(operand ? from : whole->operands - 1 - from);
        bool kept = key != NULL && PyDict_SetItem(*saved, key, value) == 0; /* which keeps the value */
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (!kept) return false;
        PyTuple_SET_ITEM(*versions, k, Py_NewRef(AT(operand ? AT(value, Tensor.at._storage) : value, Storage.at.version)));
    }
    return *saved != NULL && *versions != NULL;
}

static PyObject *make_node(Superinstruction *whole, Node_Steps *plan, Run *run, PyObject **storages, PyObject **made, PyObject *context, PyObject *line) {
    PyObject *saved = NULL, *versions = NULL, *next = PyTuple_New(plan->targets), *node = NULL;
    for (int k = 0; next != NULL && k < plan->targets; k++) {
        int to = plan->next[k];
        PyObject *target = to < 0 ? Py_None : to < whole->operands ? PyTuple_GET_ITEM(PyTuple_GET_ITEM(context, 2), to) : made[to - whole->operands];
        PyTuple_SET_ITEM(next, k, Py_NewRef(target));
    }
    if (next != NULL && save(whole, plan, run, storages, &saved, &versions)) node = new_object(Function.type);
    if (node != NULL && fill_node(node, Py_None, next, saved, versions)) {
        put(node, Function.at.backward, plan->rule);
        put(node, Function.at.label, plan->label);
        put(node, Function.at.outputs, plan->outputs);
        put(node, Function.at.where, line);
        put(node, Function.at.context, plan->keeps ? context : Py_None);
    } else
        Py_CLEAR(node);
    Py_XDECREF(next);
    Py_XDECREF(saved);
    Py_XDECREF(versions);
    return node;
}

/* The graph; false with an error. */
static bool make_nodes(Superinstruction *whole, Run *run, PyObject **storages, PyObject **made) {
    if (whole->nodes == 0) return true;
    PyObject *line = line_of_user(NULL, NULL), *context = line == NULL ? NULL : context_of(whole, run);
    bool ok = context != NULL;
    for (int k = 0; ok && k < whole->nodes; k++) ok = (made[k] = make_node(whole, &whole->node[k], run, storages, made, context, line)) != NULL;
    Py_XDECREF(line);
    Py_XDECREF(context);
    return ok;
}

static PyObject *results_of(Superinstruction *whole, Run *run, PyObject *trace) {
    PyObject *storages[MOST_MEMBERS] = {NULL}, *made[MOST_NODES] = {NULL}, *found = PyTuple_New(whole->results);
    for (int k = 0; found != NULL && k < whole->results; k++) {
        Result *result = &whole->result[k];
        int from = result->from - whole->operands;
        PyObject *t = NULL, *storage = from < 0 ? NULL : storage_of(whole, run, storages, from, true);
        if (from < 0)
            t = result->from < 0 ? Py_NewRef(Py_None) : result->layout == Py_None ? Py_NewRef(run->operands[result->from]) : view_of(result, run);
        else if (storage != NULL)
            t = new_tensor(Py_NewRef(storage), result->layout);
        if (t == NULL) { Py_CLEAR(found); break; }
        PyTuple_SET_ITEM(found, k, t);
    }
    if (found != NULL && !make_nodes(whole, run, storages, made)) Py_CLEAR(found);
    for (int k = 0; found != NULL && k < whole->results; k++)
        if (whole->result[k].node >= 0) {
            replace(PyTuple_GET_ITEM(found, k), Tensor.at._grad_fn, Py_NewRef(made[whole->result[k].node]));
            replace(PyTuple_GET_ITEM(found, k), Tensor.at._requires_grad, Py_NewRef(Py_True));
        }
    for (int k = 0; k < whole->members; k++) Py_XDECREF(storages[k]);
    for (int k = 0; k < whole->nodes; k++) Py_XDECREF(made[k]);
    if (found == NULL || whole->make == (PyObject *)&PyTuple_Type) return found;
    PyObject *out = whole->make == Py_None ? Py_NewRef(PyTuple_GET_ITEM(found, 0)) : PyObject_CallOneArg(whole->make, found);
    Py_DECREF(found);
    if (out != NULL && whole->make == Py_None && !may_be_code(trace, out)) Py_CLEAR(out);
    return out;
}

/* ------------------------------------------------------------------------------------------------------------------------ calls */

/* What tells a call from others: the function, the layouts of tensors, and everything else by its value. `count`: -1, as soon as something is not known to
   stay the same, or there is too much of it. `grad`: whether there are gradients, so that it matters who wants one. `floats`: how many numbers with a point are among it. */
typedef struct { PyObject *part[MOST_KEY], *operand[MOST_OPERANDS]; int count, operands, floats; bool grad; } Call;

static PyObject *sizes, *constants;

/* set_instructed(classes of sizes, classes of what is told by its value, names of the module `dtypes`, what gives a layout another offset) */
PyObject *set_instructed(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO!O", &sizes, &constants, &PyDict_Type, &types, &at_offset)) return NULL;
    Py_INCREF(args); /* keeps all */
    default_name = PyUnicode_InternFromString("_default_float");
    quietly_name = PyUnicode_InternFromString("quietly");
    Py_RETURN_NONE;
}

static void add(Call *call, PyObject *part) {
    if (call->count >= MOST_KEY || part == NULL) call->count = -1;
    if (call->count >= 0) call->part[call->count++] = part;
}

static void look_at(Call *call, PyObject *x) {
    if (call->count < 0) return;
    bool pair = PyTuple_CheckExact(x) && PyTuple_GET_SIZE(x) == 2 && Py_IS_TYPE(PyTuple_GET_ITEM(x, 1), DType.type);
    if (x == Py_None || PySet_Contains(constants, (PyObject *)Py_TYPE(x)) == 1)
        add(call, x);
    else if (pair || is_tensor(x)) {
        if (call->operands == MOST_OPERANDS) { call->count = -1; return; }
        call->operand[call->operands++] = x;
        bool wanted = call->grad && !pair && AT(x, Tensor.at._requires_grad) == Py_True;
        add(call, (PyObject *)(pair ? DType.type : wanted ? Node.type : Tensor.type)); /* who wants a gradient is told by another class */
        add(call, pair ? PyTuple_GET_ITEM(x, 1) : origin_of(x));
    } else if (PyBool_Check(x) || (PyFloat_CheckExact(x) && !isnan(PyFloat_AS_DOUBLE(x)) && !(PyFloat_AS_DOUBLE(x) == 0.0 && signbit(PyFloat_AS_DOUBLE(x))))) {
        add(call, (PyObject *)Py_TYPE(x)); /* they equal integers, and zeros of both signs each other */
        add(call, x);
        call->floats += PyFloat_CheckExact(x);
    } else if (PyTuple_CheckExact(x) || PyList_CheckExact(x) || PySet_Contains(sizes, (PyObject *)Py_TYPE(x)) == 1) {
        add(call, (PyObject *)Py_TYPE(x));
        for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(x); k++) look_at(call, PySequence_Fast_GET_ITEM(x, k));
        add(call, Py_Ellipsis);
    } else
        call->count = -1;
}

/* The key of a call, or NULL: with an error, or as it is none that may be computed by steps that are known. */
static PyObject *key_of(Call *call, PyObject *const *args, PyObject *state) {
    call->count = call->operands = call->floats = 0;
    call->grad = AT(state, State.at.grad) == Py_True;
    add(call, args[0]);
    add(call, PyDict_GetItemWithError(types, default_name));
    add(call, AT(state, State.at.grad)); /* some functions compute in another way where gradients may be asked for */
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(args[1]); k++) look_at(call, PyTuple_GET_ITEM(args[1], k));
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(args[2], &at, &name, &value);) {
        add(call, Py_Ellipsis);
        add(call, name);
        look_at(call, value);
    }
    return call->count < 0 ? NULL : tuple_of(call->part, call->count);
}

/* The same, whatever its numbers with a point are, behind `key_of`. */
static PyObject *key_of_any(Call *call) {
    for (int k = 1; k < call->count; k++)
        if (call->part[k - 1] == (PyObject *)&PyFloat_Type) call->part[k] = (PyObject *)&PyFloat_Type;
    return tuple_of(call->part, call->count);
}

/* Whether calls are computed by steps at all. */
static bool at_once(PyObject *state) {
    return types != NULL && Py_IS_TYPE(AT(state, State.at.trace), eager_type) && AT(state, State.at.autocast) == Py_None && possible(state);
}

/* told(function, args, keywords): (key, tensors and numbers in the order in which steps have them, the key whatever its numbers with a point are, or None:
   there are none), or None if Python is to compute it. */
PyObject *tell_call(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    PyObject *state = count == 3 && types != NULL ? current_state() : NULL, *found = NULL;
    if (state == NULL) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Call call;
    PyObject *key = key_of(&call, args, state), *operands = key == NULL ? NULL : tuple_of(call.operand, call.operands);
    PyObject *any = operands == NULL ? NULL : call.floats ? key_of_any(&call) : Py_NewRef(Py_None);
    if (any != NULL) found = PyTuple_Pack(3, key, operands, any);
    Py_XDECREF(key);
    Py_XDECREF(operands);
    Py_XDECREF(any);
    Py_DECREF(state);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* What the function gives by its steps; NULL, with an error or without, where Python is to compute it. */
static PyObject *computed(Superinstruction *whole, Call *call, PyObject *trace) {
    if (call->operands != whole->operands) return NULL;
    PyObject *quietly = PyObject_GetAttr(trace, quietly_name), *found = NULL;
    Run run = {0};
    memcpy(run.operands, call->operand, sizeof(PyObject *) * call->operands);
    hold(whole, &run);
    if (quietly != NULL && find_operands(whole, &run) && run_steps(whole, &run, quietly)) found = results_of(whole, &run, trace);
    Py_XDECREF(quietly);
    let_go_of(whole, &run);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear(); /* Python says what is wrong, where it is */
    return found;
}

/* instructed(table, function, args, keywords): what the function gives; None where Python is to compute it; False if nobody knows yet which steps it takes. */
PyObject *run_superinstruction(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 4 || known.local == NULL) Py_RETURN_NONE;
    PyObject *state = current_state(); /* first of all: sizes that an export looks at are not to be asked for their hash */
    if (state == NULL) return NULL;
    PyObject *trace = AT(state, State.at.trace), *found = NULL;
    Call call;
    PyObject *key = at_once(state) ? key_of(&call, args + 1, state) : NULL;
    if (key != NULL) {
        PyObject *whole = Py_XNewRef(PyDict_GetItemWithError(args[0], key));
        if (whole == NULL && call.floats && !PyErr_Occurred()) { /* other numbers each time? */
            Py_SETREF(key, key_of_any(&call));
            whole = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(args[0], key));
        }
        if (whole != NULL && Py_IS_TYPE(whole, &Superinstruction_Type)) found = computed((Superinstruction *)whole, &call, trace);
        else if (whole != Py_False && !PyErr_Occurred()) found = Py_NewRef(Py_False);
        Py_XDECREF(whole);
        Py_XDECREF(key);
    }
    Py_DECREF(state);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* --------------------------------------------------------------------------------------------------------------------- gradients */

static bool same_number(PyObject *x, PyObject *guard) {
    if (!PyFloat_CheckExact(guard)) return Py_IS_TYPE(x, Py_TYPE(guard)) && PyObject_RichCompareBool(x, guard, Py_EQ) == 1;
    double a = PyFloat_CheckExact(x) ? PyFloat_AS_DOUBLE(x) : 0.0, b = PyFloat_AS_DOUBLE(guard);
    return PyFloat_CheckExact(x) && memcmp(&a, &b, sizeof a) == 0; /* zeros differ by their signs */
}

/* Whether an operand of a gradient is what the steps are for, and has not been written since: `guard` is the layout of a tensor without its offset or of a
   storage, `float` for any, or a number. `value`: how a storage is seen, NULL: from its beginning. */
static bool fits(Run *run, int k, PyObject *x, PyObject *guard, PyObject *version, PyObject *value) {
    PyObject *storage = NULL, *view = value;
    run->operands[k] = x;
    if (Py_IS_TYPE(x, Storage.type)) {
        storage = x;
        if (AT(x, Storage.at.layout) != guard) return false;
    } else if (is_tensor(x)) {
        storage = AT(x, Tensor.at._storage);
        view = AT(x, Tensor.at._layout);
        if (origin_of(x) != guard) return false;
    } else if (guard == (PyObject *)&PyFloat_Type) {
        run->number[k] = x;
        return PyFloat_CheckExact(x);
    } else
        return !Py_IS_TYPE(guard, Layout.type) && same_number(x, guard);
    if (version != NULL && AT(storage, Storage.at.version) != version && PyObject_RichCompareBool(AT(storage, Storage.at.version), version, Py_EQ) != 1) return false;
    run->start[k] = view == NULL ? 0 : PyLong_AsSsize_t(AT(view, Layout.at.offset));
    return (run->arrays[k] = (PyArrayObject *)Py_XNewRef(memory_in(storage))) != NULL;
}

/* What a node gives for its targets by the steps of `whole`; NULL, with an error or without, where these are not for it. The first two guards are the
   default dtype and which targets there are, as bits. */
static PyObject *by_steps(Superinstruction *whole, PyObject *trace, PyObject *node, PyObject *gradient) {
    PyObject *edge = AT(node, Node.at.edge), *value = edge == Py_None ? NULL : AT(edge, Edge.at.layout);
    PyObject *saved = AT(node, Node.at.saved), *versions = AT(node, Node.at.versions), *targets = AT(node, Node.at.next), *key, *x;
    Py_ssize_t count = saved == Py_None ? 0 : PyDict_CheckExact(saved) ? PyDict_GET_SIZE(saved) : -1;
    if (whole->guards == Py_None || PyUnicode_GET_LENGTH(AT(node, Node.at.freed)) || whole->operands != count + 1 || PyTuple_GET_SIZE(versions) != count || PyTuple_GET_SIZE(targets) > 60) return NULL;
    unsigned long long present = 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(targets); k++) present |= (unsigned long long)(PyTuple_GET_ITEM(targets, k) != Py_None) << k;
    if (PyTuple_GET_ITEM(whole->guards, 0) != PyDict_GetItemWithError(types, default_name) || PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(whole->guards, 1)) != present)
        return NULL;
    Run run = {0};
    bool fit = Py_IS_TYPE(gradient, Tensor.type) && fits(&run, 0, gradient, PyTuple_GET_ITEM(whole->guards, 2), NULL, value);
    for (Py_ssize_t at = 0, k = 0; fit && k < count && PyDict_Next(saved, &at, &key, &x); k++)
        fit = fits(&run, (int)k + 1, x, PyTuple_GET_ITEM(whole->guards, k + 3), PyTuple_GET_ITEM(versions, k), value);
    PyObject *quietly = fit ? PyObject_GetAttr(trace, quietly_name) : NULL, *found = NULL;
    hold(whole, &run);
    if (quietly != NULL && run_steps(whole, &run, quietly)) found = results_of(whole, &run, trace);
    let_go_of(whole, &run);
    Py_XDECREF(quietly);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return found;
}

PyObject *gradients_by(PyObject *formulas, PyObject *trace, PyObject *node, PyObject *gradient) {
    PyObject *found = NULL;
    Py_INCREF(formulas); /* another thread may give the edge others */
    for (Py_ssize_t k = 0; found == NULL && !PyErr_Occurred() && k < PyTuple_GET_SIZE(formulas); k++) {
        PyObject *whole = PyTuple_GET_ITEM(formulas, k);
        if (Py_IS_TYPE(whole, &Superinstruction_Type)) found = by_steps((Superinstruction *)whole, trace, node, gradient);
    }
    Py_DECREF(formulas);
    return found;
}

/* gradients(formulas, trace, node, gradient): what a node gives for its targets by the first of several superinstructions that is for it, or None. */
PyObject *run_gradients(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 4 || !PyTuple_CheckExact(args[0]) || types == NULL) { PyErr_SetString(PyExc_TypeError, "gradients takes formulas, a trace, a node and a gradient"); return NULL; }
    PyObject *found = gradients_by(args[0], args[1], args[2], args[3]);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}
