// NAME: written by `calque build`. Runs in browsers and in Node.

const DTYPES = [["float32", Float32Array], ["float64", Float64Array], ["float16", Uint16Array], ["bfloat16", Uint16Array], ["int8", Int8Array],
  ["int16", Int16Array], ["int32", Int32Array], ["int64", BigInt64Array], ["uint8", Uint8Array], ["bool", Uint8Array]];

/** What was wrong: `message` says what was expected; `code` is that of the C header (0: found before the program ran). */
export class CalqueError extends Error {
  constructor(message, code = 0) {
    super(message);
    this.name = "CalqueError";
    this.code = code;
  }
}

const missing = (name) => () => { throw new CalqueError(`[NAME] expected a function ${name}, which JavaScript does not have`); };
const FUNCTIONS = {
  sin: Math.sin, cos: Math.cos, pow: Math.pow, fmod: (a, b) => a % b, fmodf: (a, b) => Math.fround(a % b),
  fmaf: (a, b, c) => Math.fround(a * b + c), memmove: missing("memmove"), memcpy: missing("memcpy"), memset: missing("memset"), fma: missing("fma"),
};

async function bytes(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  if (typeof Response !== "undefined" && source instanceof Response) return source.arrayBuffer();
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:" && typeof process !== "undefined") {
    return (await import("node:fs/promises")).readFile(url);
  }
  const found = await fetch(url);
  if (!found.ok) throw new CalqueError(`[NAME] expected to read ${url}, got ${found.status} ${found.statusText}`);
  return found.arrayBuffer();
}

/** A model of its own state. wasm, weights: bytes, a Response, or where they are; by default beside this module. */
export async function load(wasm = "./NAME.wasm", weights = "./NAME.weights") {
  const { instance } = await WebAssembly.instantiate(await bytes(wasm), { env: FUNCTIONS });
  const needed = Number(instance.exports.NAME_weights_bytes());
  return new Model(instance.exports, needed ? await bytes(weights) : null);
}

export class Model {
  #code; #end; #instance; #programs = new Map(); #slot;

  constructor(code, weights) {
    this.#code = code;
    this.#end = (code.__heap_base.value + 63) & ~63;
    const size = code.NAME_memory_bytes();
    const memory = this.#take(Number(size));
    this.#slot = this.#take(64);
    let place = 0, length = 0;
    if (weights) {
      const data = ArrayBuffer.isView(weights) ? new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength) : new Uint8Array(weights);
      length = data.length;
      place = this.#take(length);
      new Uint8Array(code.memory.buffer).set(data, place);
    }
    const failed = code.NAME_create(memory, size, place, BigInt(length), this.#slot);
    if (failed) throw new CalqueError(`[NAME] ${this.#text(code.NAME_text(failed))}`, failed);
    this.#instance = memory;
    for (let k = 0, at; (at = code.NAME_describe(k)) !== 0; k++) {
      const [name, entry, inputs, outputs, input, output] = new Int32Array(code.memory.buffer, at, 6);
      const found = { name: this.#text(name), entry: this.#text(entry), inputs: this.#specs(input, inputs), outputs: this.#specs(output, outputs) };
      this.#programs.set(found.name, { number: k, told: found });
    }
  }

  #take(size) {
    const place = this.#end, memory = this.#code.memory;
    this.#end = (place + size + 63) & ~63;
    const lacking = this.#end - memory.buffer.byteLength;
    if (lacking > 0) memory.grow(Math.ceil(lacking / 65536));
    return place;
  }

  #text(at) {
    const data = new Uint8Array(this.#code.memory.buffer);
    return new TextDecoder().decode(data.slice(at, data.indexOf(0, at)));
  }

  #specs(at, count) {
    const found = [];
    for (let k = 0; k < count; k++) {
      const [name, dtype, ndim, shape] = new Int32Array(this.#code.memory.buffer, at + 16 * k, 4);
      const sizes = Array.from(new BigInt64Array(this.#code.memory.buffer, shape, ndim), Number);
      found.push({ name: this.#text(name), dtype: DTYPES[dtype][0], shape: sizes });
    }
    return found;
  }

  /** What there is to run: name, entry, and name, dtype and shape of inputs and outputs. */
  get programs() {
    return Array.from(this.#programs.values(), (p) => p.told);
  }

  #prepared(p) {
    if (p.tensors) return p;
    const specs = [...p.told.inputs, ...p.told.outputs];
    p.tensors = this.#take(Math.max(20 * specs.length, 1));
    const at = this.#code.NAME_describe(p.number);
    const [inputs, , input, output] = new Int32Array(this.#code.memory.buffer, at + 8, 4);
    p.places = specs.map((spec) => this.#take(Math.max(8 * spec.shape.reduce((a, b) => a * b, 1), 8)));
    p.kinds = specs.map((spec) => DTYPES.find(([name]) => name === spec.dtype)[1]);
    p.sizes = specs.map((spec) => spec.shape.reduce((a, b) => a * b, 1));
    const words = new Int32Array(this.#code.memory.buffer);
    specs.forEach((spec, k) => {
      const row = (k < inputs ? input + 16 * k : output + 16 * (k - inputs)) / 4;
      words.set([p.places[k], words[row + 3], 0, words[row + 1], words[row + 2]], p.tensors / 4 + 5 * k);
    });
    return p;
  }

  /** Run a program. inputs: an array or typed array for each input by its name (one alone may be given as it is). Returns typed arrays by name. */
  run(name, inputs = {}) {
    const found = this.#programs.get(name);
    if (!found) throw new CalqueError(`[NAME] expected the name of a program, one of ${[...this.#programs.keys()].join(", ")}, got ${String(name)}`);
    const p = this.#prepared(found), wanted = p.told.inputs;
    const isList = Array.isArray(inputs) || ArrayBuffer.isView(inputs);
    const given = isList && wanted.length === 1 ? { [wanted[0].name]: inputs } : inputs;
    if (given === null || typeof given !== "object" || Array.isArray(given)) throw new CalqueError(`[${name}] expected an array for each input by its name`);
    wanted.forEach((spec, k) => {
      const value = given[spec.name], text = `[${name}] expected ${spec.name}: ${spec.dtype}[${spec.shape.join(", ")}]`;
      const fits = Array.isArray(value) || value instanceof p.kinds[k];
      if (!fits) throw new CalqueError(`${text} as an array or ${p.kinds[k].name}, got ${value?.constructor?.name ?? String(value)}`);
      if (value.length !== p.sizes[k]) throw new CalqueError(`${text} of ${p.sizes[k]} elements, got ${value.length}`);
      const target = new p.kinds[k](this.#code.memory.buffer, p.places[k], p.sizes[k]);
      target.set(p.kinds[k] === BigInt64Array && Array.isArray(value) ? value.map(BigInt) : value);
    });
    const rows = p.told.outputs.length, first = wanted.length;
    const failed = this.#code.NAME_run(this.#instance, p.number, p.tensors, first, p.tensors + 20 * first, rows);
    if (failed) throw new CalqueError(this.#text(this.#code.NAME_error(this.#instance)), failed);
    return Object.fromEntries(p.told.outputs.map((spec, k) =>
      [spec.name, new p.kinds[first + k](this.#code.memory.buffer, p.places[first + k], p.sizes[first + k]).slice()]));
  }

  /** All state as it was exported. */
  reset() {
    this.#code.NAME_reset(this.#instance);
  }
}
