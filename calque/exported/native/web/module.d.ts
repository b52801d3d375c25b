// NAME: written by `calque build`.

export type Data = Float32Array | Float64Array | Uint16Array | Int8Array | Int16Array | Int32Array | BigInt64Array | Uint8Array;
export type Source = string | URL | Response | ArrayBuffer | ArrayBufferView;

export interface Spec {
  name: string;
  dtype: "float32" | "float64" | "float16" | "bfloat16" | "int8" | "int16" | "int32" | "int64" | "uint8" | "bool";
  shape: number[];
}

export interface Program {
  name: PROGRAMS;
  entry: string;
  inputs: Spec[];
  outputs: Spec[];
}

export class CalqueError extends Error {
  code: number;
}

export class Model {
  readonly programs: Program[];
  run(name: PROGRAMS, inputs?: number[] | Data | Record<string, number[] | bigint[] | Data>): Record<string, Data>;
  reset(): void;
}

export function load(wasm?: Source, weights?: Source): Promise<Model>;
