"""The C header of a library."""

from __future__ import annotations

import re
from collections.abc import Sequence

from calque.exported.graph import Spec
from calque.exported.native.plan import DTYPES, FUNCTIONS, Plan, Signature
from calque.exported.native.runtime import CODES
from calque.exported.native.tables import most_threads

C_TYPES = {"float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t"}
WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await co_return co_yield compl concept
const consteval constexpr constinit const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false float
for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try
typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq linux unix
"""
"""Words of C and C++, and what GCC defines."""

TAKEN = WORDS + "m d inputs outputs"
"""Words that parameters cannot be called."""

DECLARED = """
main std calque int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t intptr_t intmax_t uintmax_t size_t ptrdiff_t
NULL EOF FILE fpos_t div_t ldiv_t lldiv_t stdin stdout stderr BUFSIZ RAND_MAX abort abs atexit atof atoi atol atoll bsearch calloc div exit _Exit
free getenv labs ldiv llabs lldiv malloc mblen mbstowcs mbtowc qsort quick_exit rand realloc srand strtod strtof strtol strtold strtoll strtoul
strtoull system wcstombs wctomb clearerr fclose feof ferror fflush fgetc fgetpos fgets fopen fprintf fputc fputs fread freopen fscanf fseek fsetpos
ftell fwrite getc getchar gets perror printf putc putchar puts remove rename rewind scanf setbuf setvbuf snprintf sprintf sscanf tmpfile tmpnam
ungetc vfprintf vprintf vsnprintf vsprintf random
"""
"""Names that the headers, or what they include, or every program, have for something else."""

RESERVED = (*FUNCTIONS, "new", "new_threads", "free", "read_weights")
"""What functions of programs cannot be called, behind the name of the library."""

_COMMON = """
#ifndef CALQUE_TENSOR
#define CALQUE_TENSOR
/* A tensor that the caller holds. strides (in elements) may be NULL: dense and row-major, which is all that is taken. */
typedef struct { void *data; const int64_t *shape; const int64_t *strides; int32_t dtype; int32_t ndim; } calque_tensor;
enum { %(dtypes)s };
/* What goes into a program and comes out of it. */
typedef struct { const char *name; int32_t dtype; int32_t ndim; const int64_t *shape; } calque_spec;
typedef struct {
    const char *name, *entry;
    int32_t inputs, outputs;
    const calque_spec *input, *output;
} calque_signature;
enum { CALQUE_OK, %(codes)s };
#endif
"""

_API = """
/* An instance: a block of memory with its own state. One thread uses it at a time; as many instances as there is memory run side by side. */
typedef struct NAME NAME;

/* Programs by number (below NAME_PROGRAMS): what they take and give; NULL for other numbers. */
const calque_signature *NAME_describe(int32_t program);

/* Bytes of memory that an instance needs, from a multiple of 64 on; what a weights file has (0: the weights are in the library). */
uint64_t NAME_memory_bytes(void);
uint64_t NAME_weights_bytes(void);

/* Make an instance in memory of the caller's, which stays the caller's. weights: the bytes of the weights file, from a multiple of 8 on, which must
   stay where they are (NULL if they are in the library). Returns CALQUE_OK or an error code, and sets *instance (to NULL if there is an error). */
int32_t NAME_create(void *memory, uint64_t bytes, const void *weights, uint64_t weights_bytes, NAME **instance);

/* Run a program. Allocates nothing. Outputs are written where the caller's tensors say; they must not share memory with other tensors, and
   no tensor may lie in the memory of the instance (copy state that is an input). Returns CALQUE_OK or an error code; then nothing was written to
   outputs or state. */
int32_t NAME_run(NAME *m, int32_t program, const calque_tensor *inputs, int32_t input_count, const calque_tensor *outputs, int32_t output_count);

/* The text of the last error of an instance, with what was expected; the text of an error code, which is all there is of CALQUE_BUSY: the last
   error is then that of the thread that uses the instance. */
const char *NAME_error(const NAME *m);
const char *NAME_text(int32_t code);

/* State (caches, running statistics, parameters that a train step changes) by number, from 0 on: where it lies, dense and row-major, to be read or
   overwritten between runs, and in *spec, which may be NULL, what it is. NULL for other numbers. */
void *NAME_state(NAME *m, int32_t number, const calque_spec **spec);

/* All state as it was exported, or CALQUE_BUSY. */
int32_t NAME_reset(NAME *m);

/* The end of an instance and of its threads, whose memory may then be used for something else. */
void NAME_destroy(NAME *m);

/* Threads. An instance runs on the caller's thread alone until it is told otherwise; this library takes @NUMBERS@.
   NAME_threads_bytes: the memory of an instance for so many, the caller's included (0: it cannot have them); give it to NAME_create.
   NAME_set_threads: starts the others, which sleep between runs, or ends them (1). They take the signal mask of the caller. CALQUE_FEWER: the system
   gave less of them, and the instance runs on those; with other errors nothing has changed.
   NAME_threads: how many there are. Outputs do not depend on it. In the child of a fork there is one until NAME_set_threads is called again. */
uint64_t NAME_threads_bytes(int32_t threads);
int32_t NAME_set_threads(NAME *m, int32_t threads);
int32_t NAME_threads(NAME *m);
"""

_HELPERS = """
#ifndef CALQUE_NO_STDLIB
#include <stdio.h>
#include <stdlib.h>
/* The same with memory from malloc, on so many threads (fewer with CALQUE_FEWER). NULL if there is another error. code may be NULL. */
static inline NAME *NAME_new_threads(const void *weights, uint64_t weights_bytes, int32_t threads, int32_t *code) {
    uint64_t bytes = NAME_threads_bytes(threads);
    char *block = bytes ? (char *)malloc((size_t)(bytes + 128)) : NULL;
    NAME *made = NULL;
    int32_t found = bytes ? CALQUE_MEMORY : CALQUE_THREADS;
    if (block) {
        char *memory = block + 128 - ((uintptr_t)block & 63);
        ((void **)memory)[-1] = block;
        found = NAME_create(memory, bytes, weights, weights_bytes, &made);
        if (found) free(block);
        else found = NAME_set_threads(made, threads);
    }
    if (code) *code = found;
    return made;
}

/* On the caller's thread alone. */
static inline NAME *NAME_new(const void *weights, uint64_t weights_bytes, int32_t *code) {
    return NAME_new_threads(weights, weights_bytes, 1, code);
}

static inline void NAME_free(NAME *m) {
    if (m) {
        void *block = ((void **)m)[-1];
        NAME_destroy(m);
        free(block);
    }
}

/* The bytes of a weights file, to be freed with free(); NULL if it cannot be read. Systems that map files can do that instead. */
static inline void *NAME_read_weights(const char *path) {
    uint64_t bytes = NAME_weights_bytes();
    FILE *file = fopen(path, "rb");
    void *found = file ? malloc((size_t)bytes + 1) : NULL;
    if (found && fread(found, 1, (size_t)bytes + 1, file) != (size_t)bytes) {
        free(found);
        found = NULL;
    }
    if (file) fclose(file);
    return found;
}
#endif
"""


def header(plan: Plan, inside: bool) -> str:
    """Its text."""
    name, guard = plan.name, f"{plan.name.upper()}_H"
    codes = ", ".join(f"CALQUE_{code}" for code in CODES)
    dtypes = ", ".join(f"CALQUE_{dtype.upper()}" for dtype in DTYPES)
    taken = {f"{guard}", f"{name.upper()}_PROGRAMS"}
    constants = [c_name(f"{name}_{s.name}".upper(), taken) for s in plan.signatures]
    numbers = ", ".join([*constants, f"{name.upper()}_PROGRAMS"])
    functions = {f"{name}_{function}" for function in RESERVED}
    wrappers = [_wrapper(name, c_name(f"{name}_{s.name}", functions), constant, s) for s, constant in zip(plan.signatures, constants, strict=True)]
    targets = ", ".join(f"{t.triple} ({t.name})" for t in plan.targets)
    lead = f"/* {name}: written by `calque build` for {targets}. The weights are in {'the library' if inside else f'{name}.weights'}. */"
    parts = [
        lead, f"#ifndef {guard}\n#define {guard}\n#include <stddef.h>\n#include <stdint.h>\n#ifdef __cplusplus\nextern \"C\" {{\n#endif",
        _COMMON % {"codes": codes, "dtypes": dtypes}, f"/* Numbers of the programs. */\nenum {{ {numbers} }};",
        _api(name, most_threads(plan.targets[0])), *wrappers, _HELPERS.replace("NAME", name), "#ifdef __cplusplus\n}\n#endif\n#endif\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _api(name: str, threads: int) -> str:
    """What every library has."""
    return _API.replace("@NUMBERS@", f"1 to {threads}" if threads > 1 else "1: others are made for Linux alone").replace("NAME", name)


def c_name(name: str, taken: set[str]) -> str:
    """A name as an identifier of C that is not taken yet."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    found = f"x{found}" if found[:1].isdigit() or not found else found
    while found in taken:
        found += "_"
    taken.add(found)
    return found


def _parameters(specs: Sequence[Spec], const: str, taken: set[str]) -> tuple[list[str], list[str]]:
    names = [c_name(s.name, taken) for s in specs]
    types = [C_TYPES.get(s.dtype.name, f"{s.dtype.name}_t") for s in specs]
    return names, [f"{const}{kind} *{n}" for kind, n in zip(types, names, strict=True)]


def _wrapper(name: str, function: str, constant: str, s: Signature) -> str:
    """A function with a parameter for each tensor, all of which are dense."""
    taken = set(TAKEN.split())
    inputs, given = _parameters(s.inputs, "const ", taken)
    outputs, wanted = _parameters(s.outputs, "", taken)
    told = zip([*inputs, *outputs], [*s.inputs, *s.outputs], strict=True)
    shapes = "; ".join(f"{n}: {spec.dtype.name}[{', '.join(map(str, spec.shape))}]" for n, spec in told)

    def rows(names: list[str], which: str) -> str:
        fields = (f"{{ (void *){n}, d->{which}[{k}].shape, NULL, d->{which}[{k}].dtype, d->{which}[{k}].ndim }}" for k, n in enumerate(names))
        return ", ".join(fields) or "{ NULL, NULL, NULL, 0, 0 }"

    return (
        f"\n/* {shapes} */\nstatic inline int32_t {function}({', '.join([f'{name} *m', *given, *wanted])}) {{\n"
        f"    const calque_signature *d = {name}_describe({constant});\n"
        f"    const calque_tensor inputs[] = {{ {rows(inputs, 'input')} }};\n    const calque_tensor outputs[] = {{ {rows(outputs, 'output')} }};\n"
        f"    (void)d;\n    return {name}_run(m, {constant}, inputs, {len(inputs)}, outputs, {len(outputs)});\n}}"
    )
