/* Python's objects as the recording functions see them: slots by their offsets, and new ones made without calling anything. */
#ifndef CALQUE_HANDLES_H
#define CALQUE_HANDLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>

#define AT(object, offset) (*(PyObject **)((char *)(object) + (offset)))
#define SLOTS_TENSOR(X) X(_storage) X(_layout) X(_requires_grad) X(_grad_fn) X(_grad) X(_base) X(_views) X(_cache) X(_hooks)
#define SLOTS_STORAGE(X) X(trace) X(slot) X(layout) X(buffer) X(home) X(version) X(writer)
#define SLOTS_BUFFER(X) X(array) X(task) X(owner) X(export) X(trace) X(number) X(readers) X(pins) X(floating) X(made)
#define SLOTS_LAYOUT(X) X(shape) X(strides) X(offset) X(dtype) X(device) X(numel) X(nbytes) X(contiguous) X(plain) X(upright) X(origin) X(value)
#define SLOTS_NODE(X) X(edge) X(next) X(saved) X(versions) X(number) X(hooks) X(retain) X(freed)
#define SLOTS_FUNCTION(X) X(backward) X(label) X(outputs) X(where) X(context)
#define SLOTS_VALUE(X) X(op) X(inputs) X(attrs) X(shape) X(dtype) X(line)
#define SLOTS_EDGE(X) X(next) X(parent) X(op) X(inputs) X(attrs) X(line) X(layout) X(boundary) X(formula) X(gradients) X(input_layouts) X(loose) X(rhythm)
#define SLOTS_TRACE(X) X(cur) X(n) X(storages) X(scalars) X(recorded)
#define SLOTS_STATE(X) X(trace) X(grad) X(applied) X(device) X(started) X(capture) X(waiting) X(autocast)
#define SLOTS_SETTINGS(X) X(eager) X(checked) X(deterministic) X(sync) X(fallback)
#define SLOTS_OP(X) X(name) X(vjp) X(save_table) X(ordered) X(attrs)
#define SLOTS_DTYPE(X) X(name) X(category) X(np)
#define SLOTS_TASK(X) X(done)

#define FIELD(name) Py_ssize_t name;
typedef struct { PyTypeObject *type; struct { SLOTS_TENSOR(FIELD) } at; } TensorClass;
typedef struct { PyTypeObject *type; struct { SLOTS_STORAGE(FIELD) } at; } StorageClass;
typedef struct { PyTypeObject *type; struct { SLOTS_BUFFER(FIELD) } at; } BufferClass;
typedef struct { PyTypeObject *type; struct { SLOTS_LAYOUT(FIELD) } at; } LayoutClass;
typedef struct { PyTypeObject *type; struct { SLOTS_NODE(FIELD) } at; } NodeClass;
typedef struct { PyTypeObject *type; struct { SLOTS_FUNCTION(FIELD) } at; } FunctionClass;
typedef struct { PyTypeObject *type; struct { SLOTS_EDGE(FIELD) } at; } EdgeClass;
typedef struct { PyTypeObject *type; struct { SLOTS_VALUE(FIELD) } at; } ValueClass;
typedef struct { PyTypeObject *type; struct { SLOTS_TRACE(FIELD) } at; } TraceClass;
typedef struct { PyTypeObject *type; struct { SLOTS_STATE(FIELD) } at; } StateClass;
typedef struct { PyTypeObject *type; struct { SLOTS_OP(FIELD) } at; } OpClass;
typedef struct { PyTypeObject *type; struct { SLOTS_DTYPE(FIELD) } at; } DTypeClass;
typedef struct { PyTypeObject *type; struct { SLOTS_TASK(FIELD) } at; } TaskClass;

typedef struct { PyTypeObject *type; struct { SLOTS_SETTINGS(FIELD) } at; } SettingsClass;

extern TensorClass Tensor;
extern StorageClass Storage;
extern BufferClass Buffer;
extern LayoutClass Layout;
extern NodeClass Node;
extern FunctionClass Function;
extern EdgeClass Edge;
extern ValueClass Value; /* a node of a program */
extern TraceClass Trace;
extern StateClass State;
extern OpClass Op;
extern DTypeClass DType;
extern TaskClass Task;
extern SettingsClass Settings;

/* What the Python twin closes over. `local`: `recorder.local`; `types`: `TENSOR_TYPES`; `numbers`: of autograd nodes;
   `primitives`: by name; `recorded`: what records one, whatever it is. */
typedef struct {
    PyObject *local, *types, *numbers, *slot_of, *flush, *bound, *baked, *scalar_tag, *primitives, *recorded;
    PyObject *state_name, *zero, *one, *minus_one, *empty_string, *empty_tuple, *tag_s, *storage_name, *storage_slot;
} Known;
extern Known known;

bool find_classes(PyObject *classes);

static inline PyObject *new_object(PyTypeObject *type) { return type->tp_alloc(type, 0); }
static inline void put(PyObject *object, Py_ssize_t offset, PyObject *value) { AT(object, offset) = Py_NewRef(value); }
static inline void replace(PyObject *object, Py_ssize_t offset, PyObject *value) {
    PyObject *before = AT(object, offset);
    AT(object, offset) = value; /* steals */
    Py_XDECREF(before);
}
/* Whether x is a tensor whose slots may be read: all are there (one that is only being made has none yet), its class has put nothing before them, as
   those with a protocol of their own do, and nobody has put something else for a layout into them. */
static inline bool is_tensor(PyObject *x) {
    PyTypeObject *type = Py_TYPE(x);
    if (type != Tensor.type && (PySet_Contains(known.types, (PyObject *)type) != 1 || _PyType_Lookup(type, known.storage_name) != known.storage_slot))
        return false;
    return AT(x, Tensor.at._hooks) != NULL && Py_IS_TYPE(AT(x, Tensor.at._layout), Layout.type);
}
static inline PyObject *current_state(void) { return PyObject_GetAttr(known.local, known.state_name); }
static inline int category_of(PyObject *layout) {
    return (int)PyLong_AsLong(AT(AT(layout, Layout.at.dtype), DType.at.category));
}

PyObject *new_tensor(PyObject *storage, PyObject *layout);   /* steals the storage */
PyObject *new_storage(PyObject *trace, PyObject *slot, PyObject *layout, PyObject *buffer);
bool fill_node(PyObject *node, PyObject *edge, PyObject *next, PyObject *saved, PyObject *versions);
bool attach(PyObject *out, PyObject *edge, PyObject *op, PyObject *const *operands, Py_ssize_t count);
PyObject *make_view(PyObject *module, PyObject *const *args, Py_ssize_t count);

extern PyTypeObject Unchanged_Type;
PyObject *new_unchanged(PyObject *module, PyObject *args);

#endif
