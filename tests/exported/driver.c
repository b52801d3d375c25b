/* Runs a program of a library: driver PROGRAM TIMES WEIGHTS-FILE INPUT-FILE OUTPUT-FILE [THREADS]. The input file holds all inputs, one behind the other; outputs
   are appended after every run. Everything lies in memory with guards, which are looked at. Built with -DNAME=library and -include library.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#define F(x) GLUE(NAME, x)
enum { GUARD = 64 };
static const int sizes[] = { 4, 8, 2, 2, 1, 2, 4, 8, 1, 1 };
static size_t bytes_of(const calque_spec *s) {
    size_t n = (size_t)sizes[s->dtype];
    for (int k = 0; k < s->ndim; k++) n *= (size_t)s->shape[k];
    return n;
}
static char *guarded(size_t bytes) {
    char *block = (char *)malloc(bytes + 2 * GUARD);
    memset(block, 0x5A, bytes + 2 * GUARD);
    return block + GUARD;
}
static void intact(char *p, size_t bytes) {
    for (int k = 0; k < GUARD; k++)
        if (p[-1 - k] != 0x5A || p[bytes + (size_t)k] != 0x5A) { fprintf(stderr, "written outside\n"); exit(3); }
}
int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) return 2;
    int program = atoi(argv[1]), times = atoi(argv[2]);
    int32_t code = 0;
    void *weights = strcmp(argv[3], "-") ? F(_read_weights)(argv[3]) : NULL;
    NAME *m = F(_new_threads)(weights, weights ? F(_weights_bytes)() : 0, argc == 7 ? atoi(argv[6]) : 1, &code);
    if (!m) { fprintf(stderr, "create: %d %s\n", code, F(_text)(code)); return 4; }
    const calque_signature *d = F(_describe)(program);
    if (!d) return 5;
    calque_tensor *in = calloc((size_t)d->inputs + 1, sizeof *in), *out = calloc((size_t)d->outputs + 1, sizeof *out);
    FILE *source = fopen(argv[4], "rb"), *result = fopen(argv[5], "wb");
    for (int k = 0; k < d->inputs; k++) {
        size_t n = bytes_of(d->input + k);
        in[k] = (calque_tensor){ guarded(n), d->input[k].shape, NULL, d->input[k].dtype, d->input[k].ndim };
        if (fread(in[k].data, 1, n, source) != n) return 6;
    }
    for (int k = 0; k < d->outputs; k++)
        out[k] = (calque_tensor){ guarded(bytes_of(d->output + k)), d->output[k].shape, NULL, d->output[k].dtype, d->output[k].ndim };
    for (int t = 0; t < times; t++) {
        code = F(_run)(m, program, in, d->inputs, out, d->outputs);
        if (code) { fprintf(stderr, "run: %d %s\n", code, F(_error)(m)); return 7; }
        for (int k = 0; k < d->outputs; k++) fwrite(out[k].data, 1, bytes_of(d->output + k), result);
    }
    for (int k = 0; k < d->inputs; k++) { intact(in[k].data, bytes_of(d->input + k)); free((char *)in[k].data - GUARD); }
    for (int k = 0; k < d->outputs; k++) { intact(out[k].data, bytes_of(d->output + k)); free((char *)out[k].data - GUARD); }
    fclose(source), fclose(result), free(in), free(out), F(_free)(m), free(weights);
    return 0;
}
