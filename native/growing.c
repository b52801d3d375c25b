/* New edges: what `grow` of `record/recorder.py` does behind an operation that nobody has recorded at this place, where nothing is unusual. Sizes that
   are new at every turn ask for it at every operation. What the result is, which line it belongs to and what an edge is made of stay Python's. */
#include "handles.h"
#include "eager.h"

static PyObject *results, *result_of, *line_of, *counters, *make_room, *in_use, *with_offset, *settings, *view_op, *view_at, *varying, *value_of, *seen, *edges_name, *several_name;

/* set_growing(results that are known, what gives one, what gives the line, Counters, what makes room, InUse, operations with an offset, settings, view, view_at,
   offsets that vary, what gives the layout of a value) */
PyObject *set_growing(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO", &results, &result_of, &line_of, &counters, &make_room, &in_use, &with_offset, &settings, &view_op,
                          &view_at, &varying, &value_of)) return NULL;
    edges_name = PyUnicode_InternFromString("edges");
    seen = PyUnicode_InternFromString("seen");
    several_name = PyUnicode_InternFromString("several");
    Py_INCREF(args); /* keeps all of them */
    Py_RETURN_NONE;
}

#define HUGE_BYTES (1LL << 32) /* as `_HUGE` of `recorder.py` */

static bool is_number(PyObject *x, long number) { return PyLong_CheckExact(x) && PyLong_AsLong(x) == number; }

/* Whether `compute_at_once` of `record/at_once.py` would say that an operation is recorded here, and `grow` has nothing to ask; -1 with an error. */
static int is_plain(PyObject *state, PyObject *trace, PyObject *cur) {
    if (AT(cur, Edge.at.loose) != Py_False || AT(cur, Edge.at.rhythm) != Py_None || AT(state, State.at.device) != Py_None) return 0;
    if (AT(settings, Settings.at.fallback) != Py_False) return 0;
    PyObject *eager = AT(settings, Settings.at.eager);
    bool recorded = !is_number(AT(trace, Trace.at.recorded), 0), begun = !is_number(AT(trace, Trace.at.n), 0);
    if (!recorded && !is_number(eager, 0) && (!begun || !is_number(eager, 1))) return 0;
    PyObject *several = PyObject_GetAttr(in_use, several_name);
    if (several == NULL) return -1;
    Py_DECREF(several);
    return several == Py_False;
}

/* The layouts of the values of operands; NULL without an error if one was never asked for. */
static PyObject *layouts_of(PyObject *const *operands, Py_ssize_t count) {
    PyObject *layouts = PyTuple_New(count);
    for (Py_ssize_t k = 0; layouts != NULL && k < count; k++) {
        PyObject *view = AT(operands[k], Tensor.at._layout), *value = AT(view, Layout.at.plain) == Py_True ? view : AT(view, Layout.at.value);
        if (value == NULL || value == Py_None) { Py_DECREF(layouts); return NULL; }
        PyTuple_SET_ITEM(layouts, k, Py_NewRef(value));
    }
    return layouts;
}

static void untrack(PyObject *x) {
    if (PyObject_IS_GC(x) && PyObject_GC_IsTracked(x)) PyObject_GC_UnTrack(x);
}

/* The edge goes behind where the trace stands. */
static bool put_behind(PyObject *cur, PyObject *key, PyObject *edge) {
    untrack(key);
    return PyDict_SetItem(AT(cur, Edge.at.next), key, edge) == 0;
}

/* One edge more; there may have to be room for it. */
static bool count_edge(PyObject *edge, bool room) {
    PyObject *before = PyObject_GetAttr(counters, edges_name);
    long count = before == NULL ? -1 : PyLong_AsLong(before) + 1;
    PyObject *after = before == NULL ? NULL : PyLong_FromLong(count), *made = NULL;
    bool ok = after != NULL && PyObject_SetAttr(counters, edges_name, after) == 0;
    if (ok && room && !(count & 3)) ok = (made = PyObject_CallOneArg(make_room, edge)) != NULL;
    Py_XDECREF(made);
    Py_XDECREF(before);
    Py_XDECREF(after);
    return ok;
}

/* The new edge of an operation on tensors where a trace stands; NULL without an error where Python is to make it. `slots`: of the operands. */
PyObject *grown(PyObject *state, PyObject *trace, PyObject *key, PyObject *op, PyObject *slots, PyObject *attrs, PyObject *const *operands) {
    PyObject *cur = Py_NewRef(AT(trace, Trace.at.cur)), *layouts = NULL, *rule = NULL, *value = NULL, *line = NULL, *edge = NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(slots);
    if (is_plain(state, trace, cur) != 1) goto done;
    int shifted = PyDict_Contains(with_offset, op);
    if (shifted != 0) goto done;
    for (Py_ssize_t k = 0; k < count; k++)
        if (PyLong_AsLong(PyTuple_GET_ITEM(slots, k)) < 0) goto done; /* recorded of turned operands */
    layouts = layouts_of(operands, count);
    rule = layouts == NULL ? NULL : PyTuple_Pack(5, op, attrs, layouts, Py_None, Py_False);
    if (rule == NULL) goto done;
    value = Py_XNewRef(PyDict_GetItemWithError(results, rule));
    if (value == NULL && !PyErr_Occurred()) value = PyObject_CallFunctionObjArgs(result_of, rule, NULL);
    if (value == NULL || PyLong_AsLongLong(AT(value, Layout.at.nbytes)) > HUGE_BYTES) goto done; /* whether it fits is asked */
    line = AT(state, State.at.applied) == Py_None ? line_of_user(NULL, NULL) : PyObject_CallNoArgs(line_of);
    if (line == NULL) goto done;
    PyObject *args[6] = {cur, op, slots, attrs, value, line};
    edge = PyObject_Vectorcall((PyObject *)Edge.type, args, 6, NULL);
    if (edge == NULL) goto done;
    replace(edge, Edge.at.input_layouts, Py_NewRef(layouts));
    untrack(rule), untrack(attrs), untrack(layouts);
    for (Py_ssize_t k = 1; k < PyTuple_GET_SIZE(key); k++) untrack(PyTuple_GET_ITEM(key, k));
    if (!put_behind(cur, key, edge) || !count_edge(edge, true)) Py_CLEAR(edge);
done:
    Py_DECREF(cur);
    Py_XDECREF(layouts);
    Py_XDECREF(rule);
    Py_XDECREF(value);
    Py_XDECREF(line);
    return edge;
}

/* The line of an operation that is recorded now; a new reference. */
static PyObject *current_line(void) {
    PyObject *state = current_state(), *line = NULL;
    if (state != NULL) line = AT(state, State.at.applied) == Py_None ? line_of_user(NULL, NULL) : PyObject_CallNoArgs(line_of);
    Py_XDECREF(state);
    return line;
}

/* view_grown(trace, key, base, layout of the base, view): as `grow_view`, for an offset that this place meets first; else None. */
PyObject *view_grown(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 5 || !Py_IS_TYPE(args[0], Trace.type) || !Py_IS_TYPE(args[3], Layout.type) || !Py_IS_TYPE(args[4], Layout.type)) return Py_NewRef(Py_None);
    PyObject *key = args[1], *whole = args[3], *view = args[4], *strides = AT(view, Layout.at.strides), *cur = NULL, *edge = NULL;
    if (AT(view, Layout.at.dtype) != AT(whole, Layout.at.dtype)) return Py_NewRef(Py_None);
    PyObject *shape = PySequence_Tuple(AT(view, Layout.at.shape)), *base = PyTuple_Pack(1, args[2]), *family = NULL, *mark = NULL, *place = NULL;
    PyObject *value = NULL, *line = NULL, *attrs = NULL, *layouts = NULL, *varies = NULL;
    if (shape == NULL || base == NULL) goto done;
    cur = Py_NewRef(AT(args[0], Trace.at.cur));
    family = PyTuple_Pack(4, view_at, base, shape, strides);
    mark = PyTuple_Pack(5, seen, view_at, base, shape, strides);
    if (family == NULL || mark == NULL) goto done;
    int met = PyDict_Contains(AT(cur, Edge.at.next), family);
    if (met == 0) met = PyDict_Contains(AT(cur, Edge.at.next), mark);
    if (met != 0) goto done;
    line = current_line();
    place = line == NULL ? NULL : PyTuple_Pack(4, line, view_at, shape, strides);
    varies = place == NULL ? NULL : PyObject_GetItem(varying, place);
    if (varies != Py_None) goto done;
    value = PyObject_CallOneArg(value_of, view);
    attrs = PyTuple_Pack(3, shape, strides, AT(view, Layout.at.offset));
    layouts = PyTuple_Pack(1, whole);
    if (value == NULL || attrs == NULL || layouts == NULL) goto done;
    PyObject *given[6] = {cur, view_op, base, attrs, value, line};
    edge = PyObject_Vectorcall((PyObject *)Edge.type, given, 6, NULL);
    if (edge == NULL) goto done;
    untrack(layouts);
    replace(edge, Edge.at.input_layouts, Py_NewRef(layouts));
    if (!put_behind(cur, key, edge) || !put_behind(cur, mark, edge) || !count_edge(edge, false)) Py_CLEAR(edge);
done:
    Py_XDECREF(shape);
    Py_XDECREF(base);
    Py_XDECREF(family);
    Py_XDECREF(mark);
    Py_XDECREF(place);
    Py_XDECREF(value);
    Py_XDECREF(line);
    Py_XDECREF(attrs);
    Py_XDECREF(layouts);
    Py_XDECREF(varies);
    Py_XDECREF(cur);
    return edge != NULL || PyErr_Occurred() ? edge : Py_NewRef(Py_None);
}
