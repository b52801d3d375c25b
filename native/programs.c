/* Programs that are new: the nodes of a path of edges, and what tells a program from others. A loop whose sizes never come again asks for both at every
   turn. Twins: `nodes_of` in `record/places.py`, `rows_of` in `ops/structure.py`. */
#include "handles.h"
#include "eager.h"

static PyObject *builtin, *size_mark, *sizes_mark, *dtype_mark;

/* set_programs(primitives that come with Calque): what `described` takes. */
PyObject *set_programs(PyObject *module, PyObject *primitives) {
    (void)module;
    PyObject *word = PyUnicode_InternFromString("size");
    builtin = Py_NewRef(primitives);
    size_mark = word == NULL ? NULL : PyTuple_Pack(1, word);
    Py_XDECREF(word);
    sizes_mark = PyUnicode_InternFromString("sizes");
    dtype_mark = PyUnicode_InternFromString("dtype");
    if (size_mark == NULL || sizes_mark == NULL || dtype_mark == NULL) return NULL;
    Py_RETURN_NONE;
}

/* A new node, which the collector need not look at; it steals inputs, attributes and shape. */
static PyObject *value_of(PyObject *op, PyObject *inputs, PyObject *attrs, PyObject *shape, PyObject *dtype, PyObject *line) {
    PyObject *node = inputs == NULL || attrs == NULL || shape == NULL ? NULL : new_object(Value.type);
    if (node == NULL) {
        Py_XDECREF(inputs);
        Py_XDECREF(attrs);
        Py_XDECREF(shape);
        return NULL;
    }
    put(node, Value.at.op, op);
    AT(node, Value.at.inputs) = inputs;
    AT(node, Value.at.attrs) = attrs;
    AT(node, Value.at.shape) = shape;
    put(node, Value.at.dtype, dtype);
    put(node, Value.at.line, line);
    if (PyObject_IS_GC(node) && PyObject_GC_IsTracked(node)) PyObject_GC_UnTrack(node);
    return node;
}

static bool append(PyObject *list, PyObject *item) { /* steals the item */
    bool ok = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return ok;
}

/* The node of a number among the operands: a run-time one, the next of `scalars`, or a constant. */
static PyObject *number_of(PyObject *source, PyObject *scalar, PyObject *constant, Py_ssize_t *scalars) {
    PyObject *dtype, *attrs;
    bool taken = PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(source, 0), "s") == 0;
    if (taken) {
        dtype = PyTuple_GET_ITEM(source, 1);
        attrs = Py_BuildValue("(nO)", (*scalars)++, dtype);
    } else {
        dtype = PyTuple_GET_ITEM(source, 2);
        attrs = PyTuple_Pack(2, PyTuple_GET_ITEM(source, 1), dtype);
    }
    return value_of(taken ? scalar : constant, Py_NewRef(known.empty_tuple), attrs, Py_NewRef(known.empty_tuple), dtype, known.empty_string);
}

/* nodes_of(path, scalar, constant): the nodes, and where the value of each slot is among them. */
PyObject *nodes_of(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 3 || !PyList_CheckExact(args[0])) { PyErr_SetString(PyExc_TypeError, "nodes_of takes a list of edges and two operations"); return NULL; }
    PyObject *nodes = PyList_New(0), *where = PyList_New(0);
    bool ok = nodes != NULL && where != NULL;
    Py_ssize_t scalars = 0;
    for (Py_ssize_t k = 0; ok && k < PyList_GET_SIZE(args[0]); k++) {
        PyObject *edge = PyList_GET_ITEM(args[0], k);
        if (!PyObject_TypeCheck(edge, Edge.type)) { PyErr_SetString(PyExc_TypeError, "nodes_of takes edges"); ok = false; break; }
        PyObject *sources = AT(edge, Edge.at.inputs), *layout = AT(edge, Edge.at.layout);
        PyObject *inputs = PyTuple_New(PyTuple_GET_SIZE(sources));
        ok = inputs != NULL;
        for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(sources); i++) {
            PyObject *source = PyTuple_GET_ITEM(sources, i), *position;
            if (PyLong_CheckExact(source))
                position = Py_NewRef(PyList_GET_ITEM(where, PyLong_AsSsize_t(source)));
            else {
                position = PyLong_FromSsize_t(PyList_GET_SIZE(nodes));
                ok = append(nodes, number_of(source, args[1], args[2], &scalars));
            }
            ok = ok && position != NULL;
            PyTuple_SET_ITEM(inputs, i, position);
        }
        ok = ok && append(where, PyLong_FromSsize_t(PyList_GET_SIZE(nodes)));
        if (!ok) { Py_XDECREF(inputs); break; }
        PyObject *shape = PySequence_Tuple(AT(layout, Layout.at.shape));
        ok = append(nodes, value_of(AT(edge, Edge.at.op), inputs, Py_NewRef(AT(edge, Edge.at.attrs)), shape, AT(layout, Layout.at.dtype), AT(edge, Edge.at.line)));
    }
    PyObject *result = ok ? PyTuple_Pack(2, nodes, where) : NULL;
    Py_XDECREF(nodes);
    Py_XDECREF(where);
    return result;
}

static bool extend(PyObject *sizes, PyObject *more) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(more); k++)
        if (PyList_Append(sizes, PyTuple_GET_ITEM(more, k)) < 0) return false;
    return true;
}

static bool are_integers(PyObject *items) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items); k++)
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(items, k))) return false;
    return true;
}

/* Attributes without sizes, which are the ones at some `places`; a new reference. */
static PyObject *kept_of(PyObject *attrs, PyObject *places, PyObject *sizes) {
    Py_ssize_t count = PyTuple_GET_SIZE(attrs);
    PyObject *kept = PyTuple_New(count);
    bool ok = kept != NULL, types = false;
    for (Py_ssize_t k = 0; ok && k < count; k++) PyTuple_SET_ITEM(kept, k, Py_NewRef(PyTuple_GET_ITEM(attrs, k)));
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(places); k++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, k));
        PyObject *size = PyTuple_GET_ITEM(attrs, at), *mark = NULL;
        if (PyLong_CheckExact(size)) {
            ok = PyList_Append(sizes, size) == 0;
            mark = Py_NewRef(size_mark);
        } else if (PyTuple_CheckExact(size) && are_integers(size)) {
            ok = extend(sizes, size);
            mark = Py_BuildValue("(On)", sizes_mark, PyTuple_GET_SIZE(size));
        } else
            continue;
        ok = ok && mark != NULL;
        Py_DECREF(size);
        PyTuple_SET_ITEM(kept, at, mark);
    }
    for (Py_ssize_t k = 0; ok && k < count; k++) types = types || Py_IS_TYPE(PyTuple_GET_ITEM(kept, k), DType.type);
    for (Py_ssize_t k = 0; ok && types && k < count; k++) {
        PyObject *item = PyTuple_GET_ITEM(kept, k);
        PyObject *told = Py_IS_TYPE(item, DType.type) ? PyTuple_Pack(2, dtype_mark, AT(item, DType.at.name)) : PyTuple_Pack(1, item);
        ok = told != NULL;
        Py_DECREF(item);
        PyTuple_SET_ITEM(kept, k, told);
    }
    if (!ok) Py_CLEAR(kept);
    return kept;
}

/* rows_of(nodes, places of sizes by operation): a row for each node, and all sizes in order; None where an operation does not come with Calque. */
PyObject *rows_of(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || !PyTuple_CheckExact(args[0])) { PyErr_SetString(PyExc_TypeError, "rows_of takes nodes and places"); return NULL; }
    PyObject *rows = PyList_New(PyTuple_GET_SIZE(args[0])), *sizes = PyList_New(0);
    bool ok = rows != NULL && sizes != NULL, strange = false;
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(args[0]); k++) {
        PyObject *node = PyTuple_GET_ITEM(args[0], k);
        if (!PyObject_TypeCheck(node, Value.type)) { PyErr_SetString(PyExc_TypeError, "rows_of takes nodes"); ok = false; break; }
        PyObject *op = AT(node, Value.at.op), *attrs = AT(node, Value.at.attrs), *shape = AT(node, Value.at.shape);
        int comes = PySet_Contains(builtin, op); /* then it has a name where records have it */
        if (comes != 1) { ok = false; strange = comes == 0; break; }
        if (!PyTuple_Check(attrs) || !PyTuple_Check(shape)) { PyErr_SetString(PyExc_TypeError, "nodes have tuples"); ok = false; break; }
        PyObject *name = AT(op, Op.at.name);
        ok = extend(sizes, shape);
        PyObject *places = ok ? PyDict_GetItemWithError(args[1], name) : NULL;
        PyObject *kept = places == NULL ? NULL : PyTuple_GET_SIZE(attrs) ? kept_of(attrs, places, sizes) : Py_NewRef(attrs);
        PyObject *row = kept == NULL ? NULL
            : Py_BuildValue("(OONnO)", name, AT(node, Value.at.inputs), kept, PyTuple_GET_SIZE(shape), AT(AT(node, Value.at.dtype), DType.at.name));
        ok = row != NULL;
        PyList_SET_ITEM(rows, k, row);
    }
    PyObject *all = ok ? PyList_AsTuple(sizes) : NULL, *result = strange ? Py_NewRef(Py_None) : all == NULL ? NULL : PyTuple_Pack(2, rows, all);
    Py_XDECREF(rows);
    Py_XDECREF(sizes);
    Py_XDECREF(all);
    return result;
}
