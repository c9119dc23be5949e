#!/usr/bin/env node
/** The environment server's process: its parts put together. */
import { fileURLToPath } from "node:url";
import { PolicyClient, JudgeClient, sendTransitions, tlsFromFolder } from "@openclaw-rl/client";
import { Health, ServerReflection } from "@openclaw-rl/client/grpc";
import { ComponentService, EnvironmentService } from "@openclaw-rl/client/v1";
import { Component, NAME } from "./component.js";
import { environment } from "./environment.js";
import { Guard } from "./guard.js";
import { Membership } from "./membership.js";
import { Pool } from "./pool.js";
import { listen, ownMesh } from "./listen.js";
import { BadOptions, HELP, readOptions, type Options } from "./options.js";
import { reflection } from "./reflection.js";
import { SessionBook } from "./sessions.js";
import { DiskOutbox, Store } from "./store.js";
import { BadTasks, readTasks } from "./tasks.js";

async function serve(options: Options): Promise<void> {
  const tasks = readTasks(options.tasks ?? fileURLToPath(new URL("../tasks.json", import.meta.url)));
  const tls = options.certs === undefined ? {} : { tls: tlsFromFolder(options.certs, NAME) };
  const certified = ownMesh(options.certs);
  const membership = new Membership(options.mesh || certified || "", NAME);
  const us = { mesh: membership.id, component: NAME, ...tls };
  const store = new Store(options.data);
  const outbox = new DiskOutbox(store, (id, reason) => book.rejected(id, reason));
  const book = new SessionBook(store, outbox, options.sessionTimeout * 1000, membership.id);
  const pool = new Pool(tasks, options.capacity, options.leaseTtl * 1000);
  const policy = new PolicyClient({ address: options.policy, ...us });
  const judge = new JudgeClient({ address: options.judge, ...us });
  let last = "";
  const sender = sendTransitions(judge, outbox, {
    onError: (error) => {
      membership.note(error);
      if (String(error) !== last) console.warn(`transitions: ${String(error)}; will try again`); // once, not each time
      last = String(error);
    },
  });
  const component = new Component({
    store,
    book,
    outbox,
    sender,
    pool,
    membership,
    secure: options.certs !== undefined,
  });
  const guard = new Guard(certified, membership);
  const services = [EnvironmentService, ComponentService];
  const all = [...services, Health, ServerReflection];
  const streams = new Set(
    all.flatMap(({ typeName, methods }) =>
      methods.filter(({ methodKind }) => methodKind !== "unary").map(({ name }) => `/${typeName}/${name}`),
    ),
  );
  const server = await listen(
    options.host,
    options.port,
    options.certs,
    (router) => {
      router.service(EnvironmentService, guard.service(EnvironmentService, environment(book, store, pool, policy)));
      router.service(ComponentService, guard.service(ComponentService, component.service()));
      router.service(Health, guard.service(Health, component.health(services.map(({ typeName }) => typeName))));
      router.service(ServerReflection, guard.service(ServerReflection, reflection(all)));
    },
    streams,
    membership.headers,
  );
  let looks = 0;
  const reaper = setInterval(
    () => {
      try {
        book.reap();
        if (++looks % 20 === 0) book.prune();
      } catch (error) {
        console.error("looking for sessions that have timed out; will try again:", error);
      }
    },
    Math.min(5000, options.sessionTimeout * 250),
  );
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.on(signal, () => component.stop());
  const host = options.host.includes(":") ? `[${options.host}]` : options.host;
  component.address = `${host}:${server.port}`;
  console.log(`${NAME} serves gRPC on ${component.address}`);

  await new Promise<void>((resolve) => component.stopping.signal.addEventListener("abort", () => resolve()));
  clearInterval(reaper);
  pool.close();
  await new Promise((resolve) => setTimeout(resolve, 50)); // for those who watch the health
  guard.stop();
  await server.close(component.graceMs);
  await sender.close();
  judge.close();
  policy.close();
  store.close();
}

try {
  const options = readOptions(process.argv.slice(2));
  if (options === undefined) process.stdout.write(HELP);
  else await serve(options);
} catch (error) {
  const known = error instanceof BadOptions || error instanceof BadTasks;
  console.error(known ? `env-server: ${error.message}\n\`env-server --help\` tells the options` : error);
  process.exitCode = known ? 2 : 1;
}
