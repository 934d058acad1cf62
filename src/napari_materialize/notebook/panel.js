// @ts-check
// The panel in the browser: draws what the kernel sends, and tells it what a person does.
//
// It keeps nothing that the kernel does not know, but for what is under way: a box that is being
// dragged, a view that is being moved. Positions on the canvas are voxels of the finest level,
// from the outer face of voxel 0, so that voxel i covers i to i + 1.

/**
 * @typedef {{ send(content: object): void,
 *   on(name: string, callback: (content: any, buffers: DataView[]) => void): void,
 *   off(name: string, callback: (content: any, buffers: DataView[]) => void): void }} Model
 * @typedef {{ name: string, type: string, size: number, scale: number }} Axis
 * @typedef {{ plane: [string, string], at: Record<string, number>, centre: [number, number],
 *   zoom: number, size: [number, number] }} Look
 * @typedef {Record<string, [number, number]>} Box
 * @typedef {{ state: string, done: number, total: number, text: string, target: string,
 *   failures: string[] }} Job
 * @typedef {{ name: string, axes: Axis[], box_axes: Axis[], levels: string[], level: number, box: Box | null,
 *   written: Box | null, cost: string, format: string, formats: [string, string][],
 *   compression: string, compressions: [string, string][], extent: string,
 *   extents: [string, string][], skip_empty: boolean, folder: string, target: string,
 *   named: boolean, problems: Record<string, string>, blocked: string | null, job: Job,
 *   look: Look | null, planes: [string, string][], moved_by: [string, number], show: string,
 *   shows: string[], window: [number, number] | null }} State
 * @typedef {{ bitmap: ImageBitmap, rect: [number, number, number, number] }} Picture
 * @typedef {{ kind: "move" | "draw" | "pan", from: [number, number], box: Box, look: Look,
 *   edges: [string, string] }} Drag
 */

const GRIP = 7; // screen pixels around an edge of the box in which it can be taken hold of
const PAUSE = 30; // milliseconds between two messages of one movement

/** @type {Record<string, string>} */
const SHOWN = { both: "source and result", computed: "result", source: "source" };

/**
 * Make an element with properties, those with a hyphen as attributes, and children.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Record<string, any>} properties @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  // JupyterLab has shortcuts for plain keys, Enter among them; it looks for this on what has the focus
  if (["button", "canvas", "input", "select"].includes(tag)) element.dataset.lmSuppressShortcuts = "true";
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else Reflect.set(element, name, value);
  }
  element.append(...children);
  return element;
}

/** Show a value in a field, unless somebody is typing there. @param {HTMLInputElement | HTMLSelectElement} field @param {string | number} value */
function put(field, value) {
  if (!field.dataset.typing && field.value !== String(value)) field.value = String(value);
}

/** Offer values and texts, keeping the elements if they are the same. @param {HTMLSelectElement} list @param {[string, string][]} rows @param {string | number} value */
function offer(list, rows, value) {
  const key = JSON.stringify(rows);
  if (list.dataset.rows !== key) list.replaceChildren(...rows.map(([each, text]) => make("option", { value: each, textContent: text })));
  list.dataset.rows = key;
  put(list, value);
}

/** Make the children of an element anew, unless they are of the same axes. @param {HTMLElement} element @param {Axis[]} axes @param {(axis: Axis) => Node} child */
function renew(element, axes, child) {
  const key = JSON.stringify(axes);
  if (element.dataset.axes !== key) element.replaceChildren(...axes.map(child));
  element.dataset.axes = key;
}

/** Make a field with its name. @param {string} name @param {Node[]} inputs */
const labelled = (name, ...inputs) => make("label", { className: "nm-field" }, make("span", { textContent: name }), ...inputs);

/** Run a function at most every so often, and once more after the last call. @param {() => void} work */
function calmly(work) {
  let timer = 0, last = -Infinity;
  return () => {
    if (timer) return;
    const wait = Math.max(0, last + PAUSE - performance.now());
    timer = window.setTimeout(() => { timer = 0; last = performance.now(); work(); }, wait);
  };
}

/** One display of a panel. */
class Display {
  id = Math.random().toString(36).slice(2);
  /** @type {State | null} */ state = null;
  /** @type {Look | null} */ look = null;
  /** @type {Record<string, any> | null} */ asked = null; // of the look, not told yet
  /** @type {Picture | null} */ picture = null;
  /** @type {Drag | null} */ drag = null;
  /** @type {Box | null} */ box = null;
  /** @type {[number, number]} */ limits = [0, 1];
  mark = -1; // of the newest picture that came
  turn = 0; // of the last movement that was told
  drawing = false;
  frame = 0;
  stop = new AbortController();
  receive = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => this.onMessage(content, buffers);
  tellLook = calmly(() => this.sendLook());
  tellWindow = calmly(() => this.send("window", { window: [this.low.valueAsNumber, this.high.valueAsNumber] }));

  canvas = make("canvas", { tabIndex: 0, className: "nm-canvas", "aria-label": "a slice of the view" });
  context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
  draw = this.button("Draw box", "Drag a rectangle on the slice (key: D)", () => this.setDrawing(!this.drawing));
  whole = this.button("Whole", "No box: all of the level", () => this.send("box", { box: null }));
  fit = this.button("Fit", "Show all of the plane (key: 0)", () => this.moveTo({ zoom: 0 }));
  planes = this.list("plane", (value) => this.moveTo({ plane: value.split(",") }));
  shows = this.list("show", (value) => this.send("show", { show: value }));
  sliders = make("div", { className: "nm-sliders" });
  low = this.input("range", "black", { step: "any" }, () => this.tellWindow());
  high = this.input("range", "white", { step: "any" }, () => this.tellWindow());
  auto = this.button("Auto", "The limits that the data has", () => this.send("window", { window: null }));
  place = make("span", { className: "nm-place" });
  level = this.list("level", (value) => this.send("change", { fields: { level: Number(value) } }));
  rows = make("div", { className: "nm-box" });
  cost = make("div", { className: "nm-note nm-cost" });
  format = this.list("format", (value) => this.send("change", { fields: { format: value } }));
  compression = this.list("compression", (value) => this.send("change", { fields: { compression: value } }));
  extent = this.list("extent", (value) => this.send("change", { fields: { extent: value } }));
  folder = this.input("text", "folder", { placeholder: "a folder on the kernel's machine" }, (value) => this.send("change", { fields: { folder: value } }));
  target = this.input("text", "name", {}, (value) => this.send("change", { fields: { target: value } }));
  empty = this.input("checkbox", "skip_empty", {}, () => this.send("change", { fields: { skip_empty: this.empty.checked } }));
  run = this.button("Run", "Compute the box and write it", () => this.send("run"));
  cancel = this.button("Cancel", "Stop the job; what was written stays", () => this.send("cancel"));
  bar = make("progress", { max: 1, value: 0, className: "nm-bar" });
  told = make("div", { className: "nm-note nm-told", "aria-live": "polite" });
  problem = make("div", { className: "nm-problem", "aria-live": "polite" });
  retry = this.button("Try again", "Compute the failed chunks of the picture again", () => this.send("retry"));
  failures = make("ul");
  holes = make("details", { className: "nm-failures", hidden: true },
      make("summary", { textContent: "Part of the picture could not be computed" }), this.failures, this.retry);

  /** @param {Model} model @param {HTMLElement} element */
  constructor(model, element) {
    this.model = model;
    this.element = this.assemble();
    element.append(this.element);
    this.listen();
    model.on("msg:custom", this.receive);
    this.resizing = new ResizeObserver(() => this.hello());
    this.resizing.observe(this.canvas);
  }

  close() {
    this.stop.abort();
    this.resizing.disconnect();
    cancelAnimationFrame(this.frame);
    this.model.off("msg:custom", this.receive);
    this.picture?.bitmap.close();
    this.send("bye");
  }

  /** @param {string} kind @param {object} rest */
  send(kind, rest = {}) {
    this.model.send({ kind, display: this.id, ...rest });
  }

  // ------------------------------------------------------------------ the page

  assemble() {
    this.run.classList.add("nm-run");
    return make("div", { className: "nm-panel" },
      make("div", { className: "nm-look" },
        make("div", { className: "nm-row" }, this.draw, this.whole, this.fit, this.planes, this.shows, this.place),
        this.canvas, this.sliders, make("div", { className: "nm-row" }, labelled("Contrast", this.low, this.high), this.auto), this.holes),
      make("div", { className: "nm-form" },
        labelled("Level", this.level), this.rows, this.cost,
        labelled("Extent", this.extent), labelled("Format", this.format), labelled("Compression", this.compression),
        make("label", { className: "nm-check" }, this.empty, "Leave out empty chunks"),
        labelled("Folder", this.folder), labelled("Name", this.target),
        this.problem, this.told, this.bar,
        make("div", { className: "nm-row nm-buttons" }, this.cancel, this.run)));
  }

  /** @param {string} text @param {string} title @param {() => void} work */
  button(text, title, work) {
    const button = make("button", { type: "button", textContent: text, title });
    button.addEventListener("click", work);
    return button;
  }

  /** @param {string} name @param {(value: string) => void} work */
  list(name, work) {
    const list = make("select", { name, "aria-label": name });
    list.addEventListener("change", () => work(list.value));
    return list;
  }

  /** @param {string} type @param {string} name @param {Record<string, any>} properties @param {(value: string) => void} work */
  input(type, name, properties, work) {
    const input = make("input", { type, name, "aria-label": name, spellcheck: false, ...properties });
    input.addEventListener("input", () => { input.dataset.typing = "yes"; });
    input.addEventListener("change", () => { delete input.dataset.typing; });
    // in JupyterLab the browser does not take Enter for the end of typing
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") { input.blur(); input.focus(); } });
    input.addEventListener(type === "range" ? "input" : "change", () => work(input.value));
    return input;
  }

  // ------------------------------------------------------------------ what the kernel says

  /** @param {any} message @param {DataView[]} buffers */
  onMessage(message, buffers) {
    if (message.kind === "picture") this.onPicture(message, buffers[0]);
    else if (message.kind === "job" && this.state) { this.state.job = message.job; this.showJob(); }
    else if (message.kind === "said") this.problem.textContent = message.text;
    else if (message.kind === "state") { this.problem.textContent = ""; this.state = message; this.showState(); }
    else if (message.kind === "look" && this.state) { Object.assign(this.state, message); this.showLook(); }
  }

  /** @param {any} message @param {DataView} buffer */
  async onPicture(message, buffer) {
    const bitmap = await createImageBitmap(new Blob([/** @type {BlobPart} */ (buffer)], { type: "image/png" }));
    if (message.mark < this.mark || this.stop.signal.aborted) return bitmap.close();
    this.picture?.bitmap.close();
    this.mark = message.mark;
    this.picture = { bitmap, rect: message.rect };
    this.limits = message.limits;
    Object.assign(this.canvas.dataset, { level: message.level, complete: message.complete, settled: message.settled });
    this.failures.replaceChildren(...message.failures.map((/** @type {string} */ text) => make("li", { textContent: text })));
    this.holes.hidden = message.failures.length === 0;
    this.showWindow();
    this.paint();
  }

  showState() {
    const state = /** @type {State} */ (this.state);
    offer(this.level, state.levels.map((text, number) => [String(number), `${number}: ${text}`]), state.level);
    offer(this.format, state.formats, state.format);
    offer(this.compression, state.compressions, state.compression);
    offer(this.extent, state.extents, state.extent);
    put(this.folder, state.folder);
    put(this.target, state.named ? state.target : "");
    this.target.placeholder = state.target || "a name that is free";
    this.empty.checked = state.skip_empty;
    this.cost.textContent = state.cost;
    if (!this.drag) this.box = state.box;
    this.showRows();
    this.showLook();
    this.showJob();
  }

  showJob() {
    const { job, blocked } = /** @type {State} */ (this.state), running = job.state === "running";
    this.run.disabled = blocked !== null;
    this.run.title = blocked ?? "Compute the box and write it";
    this.cancel.disabled = !running;
    this.element.dataset.job = job.state;
    Object.assign(this.bar, { max: Math.max(1, job.total), value: job.done, hidden: job.state === "idle" });
    const where = running || job.state === "done" ? `\n${running ? "Writing" : "Written to"} ${job.target}` : "";
    this.told.textContent = job.state === "idle" ? "" : `${job.text}${where}`;
    this.told.classList.toggle("nm-problem", job.state === "failed");
    if (!running && blocked) this.problem.textContent = blocked;
  }

  showLook() {
    const state = /** @type {State} */ (this.state), mine = state.moved_by[0] === this.id;
    if (state.look && !this.drag && (!this.look || !mine || state.moved_by[1] >= this.turn)) this.look = { ...state.look, size: this.size() };
    offer(this.planes, state.planes.map(([down, right]) => [`${down},${right}`, `${right}${down} plane`]), `${this.look?.plane}`);
    offer(this.shows, state.shows.map((show) => [show, SHOWN[show]]), state.show);
    this.shows.hidden = state.shows.length < 2;
    this.planes.hidden = state.planes.length < 2;
    this.showSliders();
    this.showWindow();
    this.paint();
  }

  showSliders() {
    const { axes } = /** @type {State} */ (this.state), { look } = this;
    const hidden = axes.filter((axis) => look && !look.plane.includes(axis.name) && axis.size > 1);
    renew(this.sliders, hidden, (axis) => this.slider(axis));
    for (const input of this.sliders.querySelectorAll("input, select")) {
      const field = /** @type {HTMLInputElement} */ (input), at = look?.at[field.name] ?? 0;
      put(field, at);
      if (field.nextElementSibling) field.nextElementSibling.textContent = String(at);
    }
  }

  /** A slider for an axis; a list of the channels. @param {Axis} axis */
  slider(axis) {
    const turn = (/** @type {string} */ value) => this.moveTo({ at: { [axis.name]: Number(value) } });
    if (axis.type !== "channel") {
      return labelled(axis.name, this.input("range", axis.name, { min: 0, max: axis.size - 1, step: 1 }, turn), make("output"));
    }
    const list = this.list(axis.name, turn);
    offer(list, Array.from({ length: axis.size }, (_, n) => [String(n), String(n)]), 0);
    return labelled("channel", list);
  }

  showWindow() {
    const window = this.state?.window, [low, high] = window ?? this.limits;
    const margin = (this.limits[1] - this.limits[0]) * 0.25;
    for (const [field, value] of /** @type {[HTMLInputElement, number][]} */ ([[this.low, low], [this.high, high]])) {
      field.min = String(Math.min(low, this.limits[0] - (window ? margin : 0)));
      field.max = String(Math.max(high, this.limits[1] + (window ? margin : 0)));
      put(field, value);
      field.title = String(value);
    }
  }

  /** Voxels of the source along an axis. @param {string} name */
  length(name) {
    return this.state?.box_axes.find((axis) => axis.name === name)?.size ?? 0;
  }

  /** The box as numbers, one row per axis. */
  showRows() {
    const { box_axes } = /** @type {State} */ (this.state);
    renew(this.rows, box_axes, (axis) => this.row(axis));
    for (const input of this.rows.querySelectorAll("input")) {
      const name = input.dataset.axis ?? "";
      put(input, (this.box?.[name] ?? [0, this.length(name)])[Number(input.dataset.end)]);
    }
  }

  /** @param {Axis} axis */
  row(axis) {
    const inputs = [0, 1].map((end) => this.input("number", `${axis.name} ${end ? "stop" : "start"}`,
      { min: end, max: axis.size - 1 + end, step: 1, "data-axis": axis.name, "data-end": end }, () => this.typed()));
    return make("div", { className: "nm-field" }, make("span", { textContent: axis.name }), inputs[0], "to", inputs[1]);
  }

  typed() {
    const box = /** @type {Box} */ ({});
    for (const input of this.rows.querySelectorAll("input")) {
      const axis = input.dataset.axis ?? "";
      box[axis] ??= [0, 0];
      box[axis][Number(input.dataset.end)] = input.valueAsNumber;
    }
    this.send("box", { box });
  }

  // ------------------------------------------------------------------ the canvas

  /** @returns {[number, number]} screen pixels down and to the right */
  size() {
    return [Math.round(this.canvas.clientHeight * devicePixelRatio), Math.round(this.canvas.clientWidth * devicePixelRatio)];
  }

  hello() {
    const [height, width] = this.size();
    if (!height || !width) return;
    this.canvas.height = height;
    this.canvas.width = width;
    if (this.look) this.look.size = [height, width];
    this.send("hello", { size: [height, width] });
    this.paint();
  }

  /** Screen pixels per finest voxel, down and to the right. @returns {[number, number]} */
  zooms() {
    const look = /** @type {Look} */ (this.look), axes = /** @type {State} */ (this.state).axes;
    const [down, right] = look.plane.map((name) => axes.find((axis) => axis.name === name)?.scale ?? 1);
    return [look.zoom * down / right, look.zoom];
  }

  /** Where a place is on the screen. @param {number} down @param {number} right @returns {[number, number]} */
  onScreen(down, right) {
    const look = /** @type {Look} */ (this.look), [tall, wide] = this.zooms();
    return [(down - look.centre[0]) * tall + this.canvas.height / 2, (right - look.centre[1]) * wide + this.canvas.width / 2];
  }

  /** The place below the pointer. @param {MouseEvent} event @returns {[number, number]} */
  below(event) {
    const look = /** @type {Look} */ (this.look), [tall, wide] = this.zooms(), around = this.canvas.getBoundingClientRect();
    const y = (event.clientY - around.top) * devicePixelRatio, x = (event.clientX - around.left) * devicePixelRatio;
    return [look.centre[0] + (y - this.canvas.height / 2) / tall, look.centre[1] + (x - this.canvas.width / 2) / wide];
  }

  /** Paint when the browser does. */
  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    const { context, canvas, picture, look, state } = this;
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!look || !state || look.zoom <= 0) return;
    if (picture) {
      const [top, bottom, left, right] = picture.rect;
      const [y0, x0] = this.onScreen(top, left), [y1, x1] = this.onScreen(bottom, right);
      context.imageSmoothingEnabled = (x1 - x0) < picture.bitmap.width;
      context.drawImage(picture.bitmap, x0, y0, x1 - x0, y1 - y0);
    }
    if (this.box && state.written && !this.drag) this.outline(state.written, "#ffffff90", [4, 4]);
    if (this.box) this.outline(this.box, this.crosses(this.box) ? "#ffd54a" : "#ffd54a70", []);
  }

  /** Whether the slice lies in a box. @param {Box} box */
  crosses(box) {
    const look = /** @type {Look} */ (this.look);
    return Object.entries(box).every(([name, [start, stop]]) =>
      look.plane.includes(name) || !(name in look.at) || (start <= look.at[name] && look.at[name] < stop));
  }

  /** @param {Box} box @param {string} colour @param {number[]} dashes */
  outline(box, colour, dashes) {
    const [down, right] = /** @type {Look} */ (this.look).plane;
    if (!box[down] || !box[right]) return;
    const [y0, x0] = this.onScreen(box[down][0], box[right][0]), [y1, x1] = this.onScreen(box[down][1], box[right][1]);
    this.context.setLineDash(dashes);
    this.context.lineWidth = 2 * devicePixelRatio;
    this.context.strokeStyle = colour;
    this.context.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  // ------------------------------------------------------------------ moving and drawing

  /** Look elsewhere; tell the kernel soon. @param {Record<string, any>} change */
  moveTo(change) {
    if (!this.look) return;
    this.asked = { ...this.asked, ...change, at: { ...this.asked?.at, ...change.at } };
    if (change.at) this.look.at = { ...this.look.at, ...change.at };
    if (change.centre) Object.assign(this.look, change);
    this.turn += 1;
    this.tellLook();
    if (this.state) this.showSliders();
    this.paint();
  }

  sendLook() {
    if (this.asked) this.send("look", { ...this.asked, size: this.size(), turn: this.turn });
    this.asked = null;
  }

  /** @param {boolean} drawing */
  setDrawing(drawing) {
    this.drawing = drawing;
    this.draw.classList.toggle("nm-on", drawing);
    this.draw.setAttribute("aria-pressed", String(drawing));
    this.canvas.style.cursor = drawing ? "crosshair" : "";
  }

  /** Which edges of the box are below the pointer. @param {MouseEvent} event @returns {[string, string]} */
  edgesBelow(event) {
    const [down, right] = /** @type {Look} */ (this.look).plane, box = this.box;
    if (!box || !box[down] || !box[right] || !this.crosses(box)) return ["", ""];
    const [y, x] = this.below(event), [tall, wide] = this.zooms(), grip = GRIP * devicePixelRatio;
    const near = (/** @type {number} */ place, /** @type {[number, number]} */ range, /** @type {number} */ zoom) => {
      const [low, high] = range.map((edge) => Math.abs(place - edge) * zoom);
      if (Math.min(low, high) <= grip) return low < high ? "start" : "stop";
      return place > range[0] && place < range[1] ? "in" : "";
    };
    const found = [near(y, box[down], tall), near(x, box[right], wide)];
    return found.includes("") ? ["", ""] : /** @type {[string, string]} */ (found);
  }

  listen() {
    const { canvas } = this, options = { signal: this.stop.signal };
    canvas.addEventListener("pointerdown", (event) => this.onDown(event), options);
    canvas.addEventListener("pointermove", (event) => this.onMove(event), options);
    canvas.addEventListener("pointerup", () => this.onUp(), options);
    canvas.addEventListener("pointercancel", () => this.onUp(), options);
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { ...options, passive: false });
    canvas.addEventListener("keydown", (event) => this.onKey(event), options);
  }

  /** @param {PointerEvent} event */
  onDown(event) {
    if (!this.look || !this.state || event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    const edges = this.edgesBelow(event), kind = this.drawing ? "draw" : edges[0] ? "move" : "pan";
    this.drag = { kind, from: this.below(event), box: { ...this.box }, look: { ...this.look }, edges };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    if (!this.look || !this.state) return;
    const [y, x] = this.below(event), drag = this.drag;
    const spot = [Math.floor(y), Math.floor(x)], [down, right] = this.look.plane;
    this.place.textContent = `${down} ${spot[0]}, ${right} ${spot[1]}`;
    if (!drag) {
      const [tall, wide] = this.edgesBelow(event);
      this.canvas.style.cursor = this.drawing ? "crosshair" : !tall ? "" : tall === "in" && wide === "in" ? "move"
        : tall === "in" ? "ew-resize" : wide === "in" ? "ns-resize" : tall === wide ? "nwse-resize" : "nesw-resize";
    } else if (drag.kind === "pan") {
      this.moveTo({ centre: [this.look.centre[0] + drag.from[0] - y, this.look.centre[1] + drag.from[1] - x], zoom: this.look.zoom });
    } else {
      this.box = drag.kind === "draw" ? this.drawn(drag, y, x) : this.moved(drag, Math.round(y - drag.from[0]), Math.round(x - drag.from[1]));
      this.paint();
    }
  }

  /** The box of a rectangle: the slice, or what was asked for if that holds the slice. @param {Drag} drag @param {number} y @param {number} x */
  drawn(drag, y, x) {
    const { box_axes } = /** @type {State} */ (this.state), look = /** @type {Look} */ (this.look);
    const kept = Object.keys(drag.box).length > 0 && this.crosses(drag.box);
    const box = /** @type {Box} */ ({});
    for (const { name, type, size } of box_axes) {
      const place = look.at[name] ?? 0;
      box[name] = kept && drag.box[name] ? drag.box[name] : type === "channel" ? [0, size] : [place, place + 1];
    }
    look.plane.forEach((name, n) => {
      const size = this.length(name), [low, high] = [drag.from[n], [y, x][n]].sort((a, b) => a - b);
      const start = Math.min(Math.max(0, Math.floor(low)), size - 1);
      box[name] = [start, Math.min(Math.max(start + 1, Math.ceil(high)), size)];
    });
    return box;
  }

  /** The box of a drag that moves it or some of its edges. @param {Drag} drag @param {number} y @param {number} x */
  moved(drag, y, x) {
    const box = { ...drag.box }, whole = drag.edges.every((edge) => edge === "in");
    drag.look.plane.forEach((name, n) => {
      box[name] = this.shifted(name, drag.box[name], [y, x][n], whole ? "in" : drag.edges[n] === "in" ? "" : drag.edges[n]);
    });
    return box;
  }

  /** @param {string} name @param {[number, number]} range @param {number} by @param {string} edge @returns {[number, number]} */
  shifted(name, [start, stop], by, edge) {
    const size = this.length(name);
    if (edge === "start") return [Math.min(Math.max(0, start + by), stop - 1), stop];
    if (edge === "stop") return [start, Math.max(Math.min(size, stop + by), start + 1)];
    if (edge !== "in") return [start, stop];
    const step = Math.min(Math.max(by, -start), size - stop);
    return [start + step, stop + step];
  }

  onUp() {
    const drag = this.drag;
    this.drag = null;
    if (!drag || drag.kind === "pan") return;
    if (drag.kind === "draw") this.setDrawing(false);
    if (this.box && JSON.stringify(this.box) !== JSON.stringify(drag.box)) this.send("box", { box: this.box });
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    // the page scrolls as it always does, unless the picture was chosen by a click or by a key
    if (!this.look || !(event.ctrlKey || event.metaKey || document.activeElement === this.canvas)) return;
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), this.below(event));
  }

  /** @param {number} factor @param {[number, number]} around */
  zoomBy(factor, around) {
    const look = /** @type {Look} */ (this.look), zoom = look.zoom * factor;
    this.moveTo({ zoom, centre: look.centre.map((middle, n) => around[n] + (middle - around[n]) / factor) });
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (!this.look || !this.state || event.ctrlKey || event.metaKey) return;
    const look = this.look, by = ["ArrowLeft", "ArrowUp", "PageDown"].includes(event.key) ? -1 : 1;
    const slide = this.state.axes.find((axis) => !look.plane.includes(axis.name) && axis.size > 1 && axis.type === "space");
    if (event.key.startsWith("Arrow")) this.onArrow(event.key === "ArrowLeft" || event.key === "ArrowRight" ? 1 : 0, by, event);
    else if (event.key === "d" || event.key === "D") this.setDrawing(!this.drawing);
    else if (event.key === "Enter") this.boxOfView();
    else if (event.key === "Escape") this.escape();
    else if (event.key === "Delete" || event.key === "Backspace") this.send("box", { box: null });
    else if (event.key === "0") this.moveTo({ zoom: 0 });
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.25, look.centre);
    else if (event.key === "-") this.zoomBy(0.8, look.centre);
    else if (slide && event.key.startsWith("Page")) this.moveTo({ at: { [slide.name]: Math.min(Math.max(0, look.at[slide.name] + by), slide.size - 1) } });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Arrows move the box, with Shift its far edges; without a box the view. @param {number} n @param {number} by @param {KeyboardEvent} event */
  onArrow(n, by, event) {
    const look = /** @type {Look} */ (this.look), name = look.plane[n];
    if (this.box?.[name] && !event.altKey) {
      this.box = { ...this.box, [name]: this.shifted(name, this.box[name], by, event.shiftKey ? "stop" : "in") };
      this.send("box", { box: this.box });
    } else {
      const step = by * look.size[n] / this.zooms()[n] / 8;
      this.moveTo({ centre: look.centre.map((middle, place) => place === n ? middle + step : middle), zoom: look.zoom });
    }
  }

  /** Make what is on the canvas the box: drawing without a mouse. */
  boxOfView() {
    const look = /** @type {Look} */ (this.look), half = this.zooms().map((zoom, n) => look.size[n] / zoom / 2);
    const drag = /** @type {Drag} */ ({ from: look.centre.map((middle, n) => middle - half[n]), box: { ...this.box } });
    this.send("box", { box: this.drawn(drag, look.centre[0] + half[0], look.centre[1] + half[1]) });
  }

  escape() {
    if (this.drag) this.box = Object.keys(this.drag.box).length ? this.drag.box : null;
    this.drag = null;
    this.setDrawing(false);
    this.paint();
  }
}

export default {
  /** Show a panel; returns what ends it. @param {{ model: Model, el: HTMLElement }} given */
  render({ model, el }) {
    const display = new Display(model, el);
    return () => display.close();
  },
};
