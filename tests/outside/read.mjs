// Read a corpus with zarrita. Runs under node, outside the project.
//
//     node read.mjs FOLDER MODULES

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, modules] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(path.join(modules, file)).href);
const zarr = await load("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await load("@zarrita/storage/dist/src/fs.js");

// bools come in a class of their own: one byte each, like everything else they are little-endian
const bytesOf = (data) =>
  ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : Uint8Array.from(data, Number);

const manifest = JSON.parse(readFileSync(path.join(folder, "manifest.json"), "utf8"));
const results = {};
for (const [name, entry] of Object.entries(manifest)) {
  if (entry.layout === "n5") continue;
  try {
    const store = new FileSystemStore(path.resolve(folder, name, entry.array));
    const open = entry.layout === "zarr2" ? zarr.open.v2 : zarr.open.v3;
    const { data, shape } = await zarr.get(await open(store, { kind: "array" }));
    const digest = createHash("sha256").update(bytesOf(data)).digest("hex");
    const same = digest === entry.sha256 && JSON.stringify(shape) === JSON.stringify(entry.shape);
    results[name] = same ? "equal" : "differs";
  } catch (error) {
    results[name] = `${error.name}: ${error.message}`.split("\n")[0].slice(0, 120);
  }
}
console.log(JSON.stringify({ zarrita: results }));
