/* The loop of a backward pass, for the nodes that have nothing unusual: `_Pass.run` of `autograd/engine.py`, which takes over at every other one. */
#include "kernels.h"
#include "eager.h"

PyObject *record_binary(PyObject *, PyObject *const *, Py_ssize_t);

static PyObject *add_op, *add_memo, *total_twin, *shown_back;

static PyObject *send_name, *gradients_name, *appends_name, *around_name, *earlier;

/* set_backward(add, memo, total, shown_back) */
PyObject *set_backward(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &add_op, &add_memo, &total_twin, &shown_back)) return NULL;
    Py_INCREF(args);
    send_name = PyUnicode_InternFromString("send");
    gradients_name = PyUnicode_InternFromString("_gradients");
    around_name = PyUnicode_InternFromString("around");
    appends_name = PyUnicode_InternFromString("appends");
    earlier = PyUnicode_InternFromString("an earlier call");
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------- the heap of `heapq`, by the first number of its entries */

static inline long rank(PyObject *entry) { return PyLong_AsLong(PyTuple_GET_ITEM(entry, 0)); }

static bool push(PyObject *heap, PyObject *node, PyObject *key) {
    long number = PyLong_AsLong(AT(node, Node.at.number));
    PyObject *first = PyLong_FromLong(-number), *entry = first == NULL ? NULL : PyTuple_Pack(3, first, key, node);
    Py_XDECREF(first);
    if (entry == NULL || PyList_Append(heap, entry) < 0) { Py_XDECREF(entry); return false; }
    Py_DECREF(entry); /* the list has it */
    PyObject **items = ((PyListObject *)heap)->ob_item;
    Py_ssize_t at = PyList_GET_SIZE(heap) - 1;
    for (; at > 0; at = (at - 1) / 2) {
        Py_ssize_t above = (at - 1) / 2;
        if (rank(items[above]) <= -number) break;
        items[at] = items[above];
    }
    items[at] = entry;
    return true;
}

/* The first entry; a new reference. */
static PyObject *pop(PyObject *heap) {
    Py_ssize_t last = PyList_GET_SIZE(heap) - 1, at = 0;
    PyObject **items = ((PyListObject *)heap)->ob_item, *first = Py_NewRef(items[0]), *moved = Py_NewRef(items[last]);
    if (PyList_SetSlice(heap, last, last + 1, NULL) < 0) { Py_DECREF(first); Py_DECREF(moved); return NULL; }
    if (last == 0) { Py_DECREF(moved); return first; }
    items = ((PyListObject *)heap)->ob_item;
    PyObject *gone = items[0];
    long number = rank(moved);
    for (;;) {
        Py_ssize_t below = 2 * at + 1;
        if (below >= last) break;
        if (below + 1 < last && rank(items[below + 1]) < rank(items[below])) below++;
        if (rank(items[below]) >= number) break;
        items[at] = items[below];
        at = below;
    }
    items[at] = moved;
    Py_DECREF(gone);
    return first;
}

/* -------------------------------------------------------------------------------------------------------------------- gradients */

static PyObject *total(PyObject *a, PyObject *b) {
    PyObject *args[4] = {add_op, add_memo, a, b};
    PyObject *found = record_binary(NULL, args, 4);
    if (found != Py_None) return found;
    Py_DECREF(found);
    return PyObject_Vectorcall(total_twin, args + 2, 2, NULL);
}

typedef struct { PyObject *work, *heap, *pending, *leaves; } Pass;

/* What `send` does for a target that is a node with one output or a leaf; everything else is for Python. */
static bool send(const Pass *pass, PyObject *target, PyObject *gradient) {
    bool node = Py_IS_TYPE(target, Node.type)
        || (Py_IS_TYPE(target, Function.type) && PyTuple_CheckExact(AT(target, Function.at.outputs))
            && PyTuple_GET_SIZE(AT(target, Function.at.outputs)) <= 1);
    if (!Py_IS_TYPE(gradient, Tensor.type) || (!node && !is_tensor(target))) {
        PyObject *done = PyObject_CallMethodObjArgs(pass->work, send_name, target, gradient, NULL);
        Py_XDECREF(done);
        return done != NULL;
    }
    PyObject *key = PyLong_FromVoidPtr(target), *where = node ? pass->pending : pass->leaves;
    if (key == NULL) return false;
    PyObject *held = PyDict_GetItemWithError(where, key), *sum = NULL;
    bool ok = !PyErr_Occurred();
    if (ok && held != NULL) {
        Py_INCREF(held);
        sum = total(node ? held : PyTuple_GET_ITEM(held, 1), gradient);
        Py_DECREF(held);
        ok = sum != NULL;
        gradient = sum;
    } else if (ok && node)
        ok = push(pass->heap, target, key);
    if (ok && node)
        ok = PyDict_SetItem(where, key, gradient) == 0;
    else if (ok) {
        PyObject *pair = PyTuple_Pack(2, target, gradient);
        ok = pair != NULL && PyDict_SetItem(where, key, pair) == 0;
        Py_XDECREF(pair);
    }
    Py_XDECREF(sum);
    Py_DECREF(key);
    return ok;
}

static bool send_all(const Pass *pass, PyObject *targets, PyObject *gradients) {
    PyObject *list = PySequence_Fast(gradients, "expected the gradients of a node");
    if (list == NULL) return false;
    bool ok = PySequence_Fast_GET_SIZE(list) == PyTuple_GET_SIZE(targets);
    if (!ok) PyErr_SetString(PyExc_ValueError, "a node has another number of gradients than of operands");
    for (Py_ssize_t k = 0; ok && k < PyTuple_GET_SIZE(targets); k++) {
        PyObject *target = PyTuple_GET_ITEM(targets, k), *gradient = PySequence_Fast_GET_ITEM(list, k);
        if (target != Py_None && gradient != Py_None) ok = send(pass, target, gradient);
    }
    Py_DECREF(list);
    return ok;
}

/* The gradient of a view's operand, if it is known to be that of the view under another layout; NULL without an error if not. */
static PyObject *seen(PyObject *node, PyObject *gradient) {
    if (!Py_IS_TYPE(gradient, Tensor.type) || AT(node, Node.at.saved) != Py_None || AT(node, Function.at.context) != Py_None) return NULL;
    PyObject *place = PyTuple_Pack(2, AT(node, Function.at.backward), AT(gradient, Tensor.at._layout));
    if (place == NULL) return NULL;
    PyObject *layout = Py_XNewRef(PyDict_GetItemWithError(shown_back, place));
    Py_DECREF(place);
    if (layout == NULL) return NULL;
    PyObject *t = new_tensor(Py_NewRef(AT(gradient, Tensor.at._storage)), layout), *all = t == NULL ? NULL : PyTuple_Pack(1, t);
    Py_DECREF(layout);
    Py_XDECREF(t);
    return all;
}

/* What a node gives for its targets. A formula that is not for it gives None; then Python finds another or runs the rule. */
static PyObject *gradients_of(const Pass *pass, PyObject *state, PyObject *node, PyObject *gradient, bool keep) {
    PyObject *trace = AT(state, State.at.trace), *edge = AT(node, Node.at.edge), *found = NULL;
    bool computed = Py_IS_TYPE(trace, eager_type);
    if (!Py_IS_TYPE(node, Node.type)) {
        if (computed && Py_IS_TYPE(node, Function.type)) found = seen(node, gradient);
        if (found != NULL || PyErr_Occurred()) return found;
        return PyObject_CallMethodObjArgs(pass->work, gradients_name, state, node, gradient, NULL);
    }
    if (computed && AT(edge, Edge.at.parent) != Py_None) /* it was recorded */
        return PyObject_CallMethodObjArgs(pass->work, gradients_name, state, node, gradient, NULL);
    PyObject *formula = AT(edge, computed ? Edge.at.formula : Edge.at.gradients), *args[3] = {trace, node, gradient};
    Py_INCREF(formula);
    Py_INCREF(trace);
    found = PyObject_Vectorcall(formula, args, 3, NULL);
    Py_DECREF(trace);
    Py_DECREF(formula);
    if (found != Py_None) {
        if (found != NULL && AT(node, Node.at.saved) != Py_None && !keep) {
            PyObject *line = AT(state, State.at.started);
            replace(node, Node.at.freed, Py_NewRef(PyUnicode_GET_LENGTH(line) ? line : earlier));
            replace(node, Node.at.saved, Py_NewRef(Py_None));
            replace(node, Node.at.versions, Py_NewRef(known.empty_tuple));
        }
        return found;
    }
    Py_DECREF(found);
    return PyObject_CallMethodObjArgs(pass->work, gradients_name, state, node, gradient, NULL);
}

static bool step(const Pass *pass, PyObject *state, bool keep) {
    PyObject *entry = pop(pass->heap);
    if (entry == NULL) return false;
    PyObject *node = PyTuple_GET_ITEM(entry, 2), *key = PyTuple_GET_ITEM(entry, 1);
    PyObject *gradient = Py_XNewRef(PyDict_GetItemWithError(pass->pending, key)), *given = NULL;
    bool ok = gradient != NULL && PyDict_DelItem(pass->pending, key) == 0;
    if (ok) {
        given = gradients_of(pass, state, node, gradient, keep);
        ok = given != NULL && send_all(pass, AT(node, Node.at.next), given);
    } else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_KeyError, "a node has no gradient");
    Py_XDECREF(gradient);
    Py_XDECREF(given);
    Py_DECREF(entry);
    return ok;
}

/* run_pass(work, state, heap, pending, leaves, keep): goes on until the heap is empty, or its first node is one for Python. */
PyObject *run_pass(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 6) { PyErr_SetString(PyExc_TypeError, "run_pass takes six arguments"); return NULL; }
    Pass pass = {args[0], args[2], args[3], args[4]};
    PyObject *state = args[1];
    bool keep = args[5] == Py_True, quietly = Py_IS_TYPE(AT(state, State.at.trace), eager_type), ok = true;
    PyObject *quiet = quietly ? PyObject_GetAttr(AT(state, State.at.trace), around_name) : NULL; /* NumPy does not warn there */
    if (quietly && quiet == NULL) return NULL;
    if (quietly && PyContext_Enter(quiet) < 0) { /* a pass inside a pass */
        PyErr_Clear();
        Py_DECREF(quiet);
        Py_RETURN_NONE;
    }
    while (ok && PyList_GET_SIZE(pass.heap)) {
        PyObject *node = PyTuple_GET_ITEM(PyList_GET_ITEM(pass.heap, 0), 2);
        bool known_type = Py_IS_TYPE(node, Node.type) || Py_IS_TYPE(node, Function.type);
        if (!known_type || AT(node, Node.at.hooks) != Py_None || AT(node, Node.at.retain) != Py_None) break;
        if (Py_IS_TYPE(AT(state, State.at.trace), eager_type) != quietly) break;
        ok = step(&pass, state, keep);
        if (ok) {
            PyObject *appends = PyObject_GetAttr(pass.work, appends_name);
            bool on = appends == Py_True;
            ok = appends != NULL;
            Py_XDECREF(appends);
            if (!on) break;
        }
    }
    if (quietly && PyContext_Exit(quiet) < 0) ok = false;
    Py_XDECREF(quiet);
    if (!ok) return NULL;
    Py_RETURN_NONE;
}
