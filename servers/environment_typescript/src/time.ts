import { setTimeout } from "node:timers/promises";
import type { Duration } from "@bufbuild/protobuf/wkt";
import { invalid } from "@openclaw-rl/client";

export function secondsOf({ seconds, nanos }: Duration): number {
  return Number(seconds) + nanos / 1e9;
}

/** The seconds of a request's field, within bounds; undefined when it is unset. */
export function bounded(field: string, value: Duration | undefined, low: number, high: number): number | undefined {
  if (value === undefined) return undefined;
  const seconds = secondsOf(value);
  if (!(seconds >= low && seconds <= high)) throw invalid(field, `${seconds}s`, `from ${low} s to ${high} s`);
  return seconds;
}

/** Wait; less when the signal is aborted. */
export async function sleep(ms: number, signal: AbortSignal): Promise<void> {
  await setTimeout(ms, undefined, { signal }).catch(() => {});
}
