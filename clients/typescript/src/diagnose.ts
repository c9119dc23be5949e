import * as net from "node:net";
import * as tls from "node:tls";

/** What an address speaks, as far as a few bytes tell. */
export type Spoken = "http/2" | "http/1" | "tls" | "nothing" | "unknown";

const PREFACE = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "latin1");
const GET = Buffer.from("GET / HTTP/1.0\r\n\r\n", "latin1");
const PROBE_MS = 1500;
const CLOSED = "certificate required: it closed the connection behind the handshake";

/**
 * Ask an address what it speaks, by the beginning of an HTTP/2 connection in plain text: a TLS server answers that with
 * an alert or by closing, most HTTP/1 servers with an error page, the others at least a request of HTTP/1. For the words
 * of an error only; it changes nothing there.
 */
export async function probe(host: string, port: number): Promise<Spoken> {
  let spoken = await answerTo(PREFACE, host, port);
  if (spoken === "unknown") spoken = await answerTo(GET, host, port);
  return spoken === "unknown" && (await handshakes(host, port)) ? "tls" : spoken;
}

/** Some TLS servers close without a word what is none; whether it is one is seen by a handshake. */
function handshakes(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = tls.connect({ host, port, rejectUnauthorized: false, ALPNProtocols: ["h2"] });
    const done = (is: boolean): void => {
      socket.destroy();
      resolve(is);
    };
    socket.setTimeout(PROBE_MS, () => done(false));
    socket.once("secureConnect", () => done(true));
    socket.once("error", (error: NodeJS.ErrnoException) => done(/ALERT/.test(error.code ?? "")));
    socket.once("close", () => done(false));
  });
}

/**
 * Why a TLS server ends a connection with these options behind a handshake that this side thinks was well: with TLS 1.3 a
 * certificate is refused only then, and HTTP/2 does not pass the reason on. Undefined when it goes on with it.
 */
export function tlsRefusal(host: string, port: number, options: tls.ConnectionOptions): Promise<Error | undefined> {
  return new Promise((resolve) => {
    const socket = tls.connect({ ...options, host, port });
    let agreed = false;
    const done = (refusal?: Error): void => {
      socket.destroy();
      resolve(refusal);
    };
    socket.setTimeout(PROBE_MS, () => done());
    socket.once("secureConnect", () => {
      agreed = true;
      socket.write(PREFACE);
    });
    socket.once("data", () => done());
    socket.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code?.startsWith("ERR_")) done(error); // others are the network's: nothing listens there any more, ...
    });
    socket.once("close", () => done(agreed ? new Error(CLOSED) : undefined));
  });
}

function answerTo(greeting: Buffer, host: string, port: number): Promise<Spoken> {
  return new Promise((resolve) => {
    const socket = net.connect({ host, port });
    const done = (spoken: Spoken): void => {
      socket.destroy();
      resolve(spoken);
    };
    socket.setTimeout(PROBE_MS, () => done("unknown"));
    socket.once("connect", () => socket.write(greeting));
    socket.once("data", (data: Buffer) => {
      if (data.subarray(0, 5).toString("latin1") === "HTTP/") done("http/1");
      else if (data[0] === 0x15 || data[0] === 0x16) done("tls");
      else if (data.length > 3 && data[3] === 4) done("http/2");
      else done("unknown");
    });
    socket.once("error", (error: NodeJS.ErrnoException) => done(error.code === "ECONNREFUSED" ? "nothing" : "unknown"));
    socket.once("close", () => done("unknown"));
  });
}
