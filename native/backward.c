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

static PyTypeObject *rule_type;
static Py_ssize_t formulas_at;

/* set_rules(NodeSteps): the class of rules that know their steps. */
PyObject *set_rules(PyObject *module, PyObject *type) {
    (void)module;
    PyObject *member = PyObject_GetAttrString(type, "formulas");
    if (member == NULL) return NULL;
    formulas_at = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    rule_type = (PyTypeObject *)Py_NewRef(type);
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

/* `needed`: ids of the targets that lead to one that is asked for, or None: all are; `wanted`: ids of those that are asked for. */
typedef struct { PyObject *work, *heap, *pending, *leaves, *needed, *wanted; } Pass;

/* Whether a gradient of that target is needed; -1 with an error. */
static int is_needed(const Pass *pass, PyObject *key) { return pass->needed == Py_None ? 1 : PySet_Contains(pass->needed, key); }

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
    int asked = is_needed(pass, key);
    if (asked != 1) { Py_DECREF(key); return asked == 0; }
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

/* A node has given what it saved for; as `free` of `autograd/engine.py`. */
static void let_go(PyObject *state, PyObject *node) {
    PyObject *line = AT(state, State.at.started);
    replace(node, Node.at.freed, Py_NewRef(PyUnicode_GET_LENGTH(line) ? line : earlier));
    replace(node, Node.at.saved, Py_NewRef(Py_None));
    replace(node, Node.at.versions, Py_NewRef(known.empty_tuple));
    if (Py_IS_TYPE(node, Function.type)) replace(node, Function.at.context, Py_NewRef(Py_None));
}

/* What a node gives for its targets. A formula that is not for it gives None; then Python finds another or runs the rule. */
static PyObject *gradients_of(const Pass *pass, PyObject *state, PyObject *node, PyObject *gradient, bool keep) {
    PyObject *trace = AT(state, State.at.trace), *edge = AT(node, Node.at.edge), *found = NULL;
    bool computed = Py_IS_TYPE(trace, eager_type);
    if (!Py_IS_TYPE(node, Node.type)) {
        bool steps = rule_type != NULL && Py_IS_TYPE(node, Function.type) && Py_IS_TYPE(AT(node, Function.at.backward), rule_type);
        if (computed && steps) {
            found = gradients_by(AT(AT(node, Function.at.backward), formulas_at), trace, node, gradient);
            if (found != NULL && !keep && AT(node, Function.at.context) != Py_None) let_go(state, node);
        } else if (computed && Py_IS_TYPE(node, Function.type))
            found = seen(node, gradient);
        if (found != NULL || PyErr_Occurred()) return found;
        return PyObject_CallMethodObjArgs(pass->work, gradients_name, state, node, gradient, NULL);
    }
    if (computed && AT(edge, Edge.at.parent) != Py_None) /* it was recorded */
        return PyObject_CallMethodObjArgs(pass->work, gradients_name, state, node, gradient, NULL);
    PyObject *formula = AT(edge, computed ? Edge.at.formula : Edge.at.gradients);
    if (computed)
        found = gradients_by(formula, trace, node, gradient);
    else {
        PyObject *args[3] = {trace, node, gradient};
        Py_INCREF(formula);
        Py_INCREF(trace);
        found = PyObject_Vectorcall(formula, args, 3, NULL);
        Py_DECREF(trace);
        Py_DECREF(formula);
    }
    if (found == NULL && PyErr_Occurred()) return NULL;
    if (found != NULL && found != Py_None) {
        if (AT(node, Node.at.saved) != Py_None && !keep) let_go(state, node);
        return found;
    }
    Py_XDECREF(found);
    return PyObject_CallMethodObjArgs(pass->work, gradients_name, state, node, gradient, NULL);
}

/* Whether one of the targets of a node is needed; -1 with an error. */
static int leads_on(const Pass *pass, PyObject *targets) {
    int found = pass->needed == Py_None;
    for (Py_ssize_t k = 0; found == 0 && k < PyTuple_GET_SIZE(targets); k++) {
        PyObject *target = PyTuple_GET_ITEM(targets, k), *key = target == Py_None ? NULL : PyLong_FromVoidPtr(target);
        if (target != Py_None) found = key == NULL ? -1 : is_needed(pass, key);
        Py_XDECREF(key);
    }
    return found;
}

static bool step(const Pass *pass, PyObject *state, bool keep) {
    PyObject *entry = pop(pass->heap);
    if (entry == NULL) return false;
    PyObject *node = PyTuple_GET_ITEM(entry, 2), *key = PyTuple_GET_ITEM(entry, 1);
    PyObject *gradient = Py_XNewRef(PyDict_GetItemWithError(pass->pending, key)), *given = NULL;
    bool ok = gradient != NULL && PyDict_DelItem(pass->pending, key) == 0;
    int on = ok ? leads_on(pass, AT(node, Node.at.next)) : 0;
    if (on < 0) ok = false;
    if (on > 0) {
        given = gradients_of(pass, state, node, gradient, keep);
        ok = given != NULL && send_all(pass, AT(node, Node.at.next), given);
    }
    if (!ok && !PyErr_Occurred()) PyErr_SetString(PyExc_KeyError, "a node has no gradient");
    Py_XDECREF(gradient);
    Py_XDECREF(given);
    Py_DECREF(entry);
    return ok;
}

/* run_pass(work, state, heap, pending, leaves, keep, needed, wanted): goes on until the heap is empty, or its first node is one for Python. */
PyObject *run_pass(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 8 || !PySet_Check(args[7]) || (args[6] != Py_None && !PySet_Check(args[6]))) { PyErr_SetString(PyExc_TypeError, "run_pass takes eight arguments, sets at their end"); return NULL; }
    Pass pass = {args[0], args[2], args[3], args[4], args[6], args[7]};
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
        int asked = PySet_GET_SIZE(pass.wanted) ? PySet_Contains(pass.wanted, PyTuple_GET_ITEM(PyList_GET_ITEM(pass.heap, 0), 1)) : 0;
        if (asked) { ok = asked > 0; break; }
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

/* ----------------------------------------------------------------------------------------------------------- what leads to what is asked for */

typedef struct { PyObject *item, *key; Py_ssize_t child; bool leads; } Visit;

/* Puts an item on the path, unless it was seen: 1; 0 if it was, with `leads` set if it leads to one that is wanted; -1 with an error. */
static int visit(Visit *path, Py_ssize_t depth, PyObject *item, PyObject *seen, bool *leads) {
    PyObject *key = PyLong_FromVoidPtr(item), *answer = key == NULL ? NULL : PyDict_GetItemWithError(seen, key);
    if (key == NULL || PyErr_Occurred()) { Py_XDECREF(key); return -1; }
    if (answer != NULL) {
        *leads = *leads || answer == Py_True;
        Py_DECREF(key);
        return 0;
    }
    path[depth] = (Visit){item, key, 0, false};
    return PyDict_SetItem(seen, key, Py_False) < 0 ? (Py_DECREF(key), -1) : 1;
}

/* The walk of `reaches` of `autograd/engine.py` from one root: 1; 0 where a node is one for Python; -1 with an error. */
static int walk(PyObject *root, PyObject *wanted, PyObject *seen, PyObject *found) {
    Py_ssize_t room = 64, depth = 0;
    Visit *path = PyMem_Malloc(room * sizeof *path);
    bool unused = false;
    int state = path == NULL ? (PyErr_NoMemory(), -1) : visit(path, 0, root, seen, &unused);
    bool first = state == 1;
    if (state == 0) state = 1;
    while (state == 1 && first && depth >= 0) {
        Visit *here = &path[depth];
        bool node = Py_IS_TYPE(here->item, Node.type) || Py_IS_TYPE(here->item, Function.type);
        if (!node && !is_tensor(here->item)) { state = 0; break; }
        int asked = here->child ? 0 : PySet_Contains(wanted, here->key);
        if (asked < 0) { state = -1; break; }
        here->leads = here->leads || asked == 1;
        PyObject *targets = node && !(asked == 1 && PySet_GET_SIZE(wanted) == 1) ? AT(here->item, Node.at.next) : known.empty_tuple;
        if (here->child < PyTuple_GET_SIZE(targets)) {
            PyObject *target = PyTuple_GET_ITEM(targets, here->child++);
            if (target == Py_None) continue;
            if (depth + 1 == room) {
                Visit *more = PyMem_Realloc(path, 2 * room * sizeof *path);
                if (more == NULL) { PyErr_NoMemory(); state = -1; break; }
                path = more;
                room *= 2;
            }
            int entered = visit(path, depth + 1, target, seen, &path[depth].leads);
            if (entered < 0) state = -1;
            depth += entered > 0;
            continue;
        }
        if (here->leads && (PyDict_SetItem(seen, here->key, Py_True) < 0 || PySet_Add(found, here->key) < 0)) { state = -1; break; }
        if (depth > 0) path[depth - 1].leads = path[depth - 1].leads || here->leads;
        Py_DECREF(here->key);
        depth--;
        first = depth >= 0;
    }
    for (; first && depth >= 0; depth--) Py_DECREF(path[depth].key);
    PyMem_Free(path);
    return state;
}

/* reaches(roots, wanted): ids of what leads to one that is wanted; None where Python is to look. */
PyObject *reach(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2 || !PyList_CheckExact(args[0]) || !PySet_Check(args[1])) { PyErr_SetString(PyExc_TypeError, "reaches takes a list and a set"); return NULL; }
    PyObject *seen = PyDict_New(), *found = PySet_New(NULL);
    int state = seen == NULL || found == NULL ? -1 : 1;
    for (Py_ssize_t k = 0; state == 1 && k < PyList_GET_SIZE(args[0]); k++) state = walk(PyList_GET_ITEM(args[0], k), args[1], seen, found);
    Py_XDECREF(seen);
    if (state == 1) return found;
    Py_XDECREF(found);
    return state < 0 ? NULL : Py_NewRef(Py_None);
}
