/* Tensors, storages and nodes of the autograd graph; each function does what the one of its name in `tensor.py` does. */
#include "handles.h"

TensorClass Tensor;
StorageClass Storage;
BufferClass Buffer;
LayoutClass Layout;
NodeClass Node;
FunctionClass Function;
EdgeClass Edge;
ValueClass Value;
TraceClass Trace;
StateClass State;
OpClass Op;
DTypeClass DType;
TaskClass Task;
SettingsClass Settings;
Known known;

static Py_ssize_t offset_of(PyObject *type, const char *name) {
    PyObject *member = PyObject_GetAttrString(type, name);
    if (member == NULL) return -1;
    Py_ssize_t found = -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type))
        found = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "expected a slot %s of %R", name, type);
    Py_DECREF(member);
    return found;
}

#define OFFSET(field) if ((found->at.field = offset_of(type, #field)) < 0) return false;
#define FIND(name, SLOTS, key) \
    { \
        name##Class *found = &name; \
        PyObject *type = PyDict_GetItemString(classes, key); \
        if (type == NULL) { PyErr_SetString(PyExc_KeyError, key); return false; } \
        found->type = (PyTypeObject *)Py_NewRef(type); \
        SLOTS(OFFSET) \
    }

bool find_classes(PyObject *classes) {
    FIND(Tensor, SLOTS_TENSOR, "Tensor")
    FIND(Storage, SLOTS_STORAGE, "Storage")
    FIND(Buffer, SLOTS_BUFFER, "Buffer")
    FIND(Layout, SLOTS_LAYOUT, "Layout")
    FIND(Node, SLOTS_NODE, "GradNode")
    FIND(Function, SLOTS_FUNCTION, "FunctionNode")
    FIND(Edge, SLOTS_EDGE, "Edge")
    FIND(Value, SLOTS_VALUE, "Node")
    FIND(Trace, SLOTS_TRACE, "Trace")
    FIND(State, SLOTS_STATE, "State")
    FIND(Op, SLOTS_OP, "OpDef")
    FIND(DType, SLOTS_DTYPE, "DType")
    FIND(Task, SLOTS_TASK, "Task")
    FIND(Settings, SLOTS_SETTINGS, "Settings")
    return true;
}

PyObject *new_storage(PyObject *trace, PyObject *slot, PyObject *layout, PyObject *buffer) {
    PyObject *s = new_object(Storage.type);
    if (s == NULL) return NULL;
    put(s, Storage.at.trace, trace);
    put(s, Storage.at.slot, slot);
    put(s, Storage.at.layout, layout);
    put(s, Storage.at.buffer, buffer);
    put(s, Storage.at.home, Py_None);
    put(s, Storage.at.version, known.zero);
    put(s, Storage.at.writer, Py_None);
    return s;
}

PyObject *new_tensor(PyObject *storage, PyObject *layout) {
    PyObject *t = storage == NULL ? NULL : new_object(Tensor.type);
    if (t == NULL) { Py_XDECREF(storage); return NULL; }
    AT(t, Tensor.at._storage) = storage;
    put(t, Tensor.at._layout, layout);
    put(t, Tensor.at._requires_grad, Py_False);
    put(t, Tensor.at._grad_fn, Py_None);
    put(t, Tensor.at._grad, Py_None);
    put(t, Tensor.at._base, Py_None);
    put(t, Tensor.at._views, Py_None);
    put(t, Tensor.at._cache, Py_None);
    put(t, Tensor.at._hooks, Py_None);
    return t;
}

bool fill_node(PyObject *node, PyObject *edge, PyObject *next, PyObject *saved, PyObject *versions) {
    PyObject *number = Py_TYPE(known.numbers)->tp_iternext(known.numbers);
    if (number == NULL) return false;
    put(node, Node.at.edge, edge);
    put(node, Node.at.next, next);
    put(node, Node.at.saved, saved);
    put(node, Node.at.versions, versions);
    AT(node, Node.at.number) = number;
    put(node, Node.at.hooks, Py_None);
    put(node, Node.at.retain, Py_None);
    put(node, Node.at.freed, known.empty_string);
    return true;
}

/* The values that an operation keeps for its gradient, and their versions; -1 stands for its result. */
static bool keep(PyObject *saves, PyObject *out, PyObject *const *operands, PyObject **saved, PyObject **versions) {
    Py_ssize_t count = PyTuple_GET_SIZE(saves);
    *saved = PyDict_New();
    *versions = PyTuple_New(count);
    if (*saved == NULL || *versions == NULL) return false;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *position = PyTuple_GET_ITEM(saves, k), *version = known.zero, *value;
        long at = PyLong_AsLong(position);
        if (at < 0)
            value = AT(out, Tensor.at._storage);
        else {
            value = operands[at];
            if (is_tensor(value)) version = AT(AT(value, Tensor.at._storage), Storage.at.version);
        }
        if (PyDict_SetItem(*saved, position, value) < 0) return false;
        PyTuple_SET_ITEM(*versions, k, Py_NewRef(version));
    }
    return true;
}

bool attach(PyObject *out, PyObject *edge, PyObject *op, PyObject *const *operands, Py_ssize_t count) {
    if (category_of(AT(out, Tensor.at._layout)) < 2) return true;
    PyObject *rules = AT(op, Op.at.vjp), *table = AT(op, Op.at.save_table), *next = PyTuple_New(count);
    if (next == NULL) return false;
    bool every = !PyTuple_CheckExact(rules), ok = false;
    Py_ssize_t mask = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *x = operands[k], *target = Py_None;
        if (is_tensor(x) && AT(x, Tensor.at._requires_grad) == Py_True
                && (every || (k < PyTuple_GET_SIZE(rules) && PyTuple_GET_ITEM(rules, k) != Py_None))) {
            PyObject *before = AT(x, Tensor.at._grad_fn);
            target = before == Py_None ? x : before;
            if (k < 60) mask |= (Py_ssize_t)1 << k;
        }
        PyTuple_SET_ITEM(next, k, Py_NewRef(target));
    }
    if (mask == 0) { Py_DECREF(next); return true; }
    PyObject *saves, *saved = NULL, *versions = NULL, *node = NULL;
    if (mask < PyTuple_GET_SIZE(table))
        saves = Py_NewRef(PyTuple_GET_ITEM(table, mask));
    else
        saves = PyObject_CallMethod(op, "saves", "n", mask);
    if (saves == NULL) goto done;
    if (PyTuple_GET_SIZE(saves) == 0) {
        saved = Py_NewRef(Py_None);
        versions = Py_NewRef(known.empty_tuple);
    } else if (!keep(saves, out, operands, &saved, &versions))
        goto done;
    node = new_object(Node.type);
    if (node == NULL || !fill_node(node, edge, next, saved, versions)) goto done;
    replace(out, Tensor.at._grad_fn, Py_NewRef(node));
    replace(out, Tensor.at._requires_grad, Py_NewRef(Py_True));
    ok = true;
done:
    Py_DECREF(next);
    Py_XDECREF(saves);
    Py_XDECREF(saved);
    Py_XDECREF(versions);
    Py_XDECREF(node);
    return ok;
}

/* Note that `view` is one of the base's; dead ones are forgotten now and then. */
static bool note_view(PyObject *base, PyObject *view) {
    PyObject *refs = AT(base, Tensor.at._views), *ref = PyWeakref_NewRef(view, NULL);
    if (ref == NULL) return false;
    bool ok;
    if (refs == Py_None) {
        PyObject *list = PyList_New(1);
        if (list == NULL) { Py_DECREF(ref); return false; }
        PyList_SET_ITEM(list, 0, ref);
        replace(base, Tensor.at._views, list);
        return true;
    }
    if (!(PyList_GET_SIZE(refs) & 63)) {
        PyObject *alive = PyList_New(0);
        ok = alive != NULL;
        for (Py_ssize_t k = 0; ok && k < PyList_GET_SIZE(refs); k++)
            if (PyWeakref_GET_OBJECT(PyList_GET_ITEM(refs, k)) != Py_None) ok = PyList_Append(alive, PyList_GET_ITEM(refs, k)) == 0;
        ok = ok && PyList_SetSlice(refs, 0, PyList_GET_SIZE(refs), alive) == 0;
        Py_XDECREF(alive);
        if (!ok) { Py_DECREF(ref); return false; }
    }
    ok = PyList_Append(refs, ref) == 0;
    Py_DECREF(ref);
    return ok;
}

/* make_view(t, kind, label) */
PyObject *make_view(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "make_view takes a tensor, a kind and a label"); return NULL; }
    PyObject *t = args[0], *kind = args[1];
    if (!PyObject_TypeCheck(t, Tensor.type) || AT(t, Tensor.at._hooks) == NULL || AT(t, Tensor.at._storage) == NULL) {
        PyErr_Format(PyExc_AttributeError, "%R has no attribute '_storage'", Py_TYPE(t));
        return NULL;
    }
    PyObject *v = new_tensor(Py_NewRef(AT(t, Tensor.at._storage)), PyTuple_GET_ITEM(kind, 0));
    if (v == NULL) return NULL;
    PyObject *base = AT(t, Tensor.at._base), *before = AT(t, Tensor.at._grad_fn);
    bool needs = AT(t, Tensor.at._requires_grad) == Py_True;
    if (base == Py_None || (needs && before == Py_None)) base = t;
    replace(v, Tensor.at._base, Py_NewRef(base));
    if (!note_view(base, v)) goto failed;
    if (needs) {
        PyObject *state = current_state();
        if (state == NULL) goto failed;
        bool grad = AT(state, State.at.grad) == Py_True;
        Py_DECREF(state);
        if (grad) {
            PyObject *next = PyTuple_Pack(1, before == Py_None ? t : before), *node = new_object(Function.type);
            bool ok = next != NULL && node != NULL && fill_node(node, Py_None, next, Py_None, known.empty_tuple);
            if (ok) {
                put(node, Function.at.backward, PyTuple_GET_ITEM(kind, 2));
                put(node, Function.at.label, args[2]);
                put(node, Function.at.outputs, PyTuple_GET_ITEM(kind, 1));
                put(node, Function.at.where, known.empty_string);
                put(node, Function.at.context, Py_None);
                replace(v, Tensor.at._grad_fn, Py_NewRef(node));
                replace(v, Tensor.at._requires_grad, Py_NewRef(Py_True));
            }
            Py_XDECREF(next);
            Py_XDECREF(node);
            if (!ok) goto failed;
        }
    }
    return v;
failed:
    Py_DECREF(v);
    return NULL;
}
