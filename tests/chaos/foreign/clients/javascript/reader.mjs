// Reads a stream by the JetStream API; one line of JSON for what it has found.
// What all readers do alike is in ../../reading.py.
import { connect } from "@nats-io/transport-node";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";

const PATIENCE_MS = 30_000, ACK_MS = 2000;
const [servers, mode, stream] = process.argv.slice(2);
const say = (line) => console.log(JSON.stringify(line));
const decode = (bytes) => new TextDecoder().decode(bytes);

const connection = await connect({
  servers: servers.split(","), maxReconnectAttempts: -1, reconnectTimeWait: 100,
});
const manager = await jetstreamManager(connection, { domain: "log", timeout: PATIENCE_MS });
const js = jetstream(connection, { domain: "log", timeout: PATIENCE_MS });

async function fetched() {
  await manager.consumers.add(stream, { durable_name: "js-fetch", ack_policy: AckPolicy.Explicit });
  const consumer = await js.consumers.get(stream, "js-fetch");
  const taken = [];
  for await (const message of await consumer.fetch({ max_messages: 4, expires: PATIENCE_MS })) taken.push(message);
  say({ fetched: taken.map((each) => each.seq), subject: taken[1].subject, header: taken[1].headers.get("Number") });
  await taken[0].ackAck();
  taken[1].nak();
  taken[2].term();
  const again = await consumer.next({ expires: PATIENCE_MS });
  say({ again: again.seq, delivered: again.info.deliveryCount });
  await again.ackAck();
  await taken[3].ackAck();
  const info = await consumer.info();
  say({ floor: info.ack_floor.stream_seq, open: info.num_ack_pending, pending: info.num_pending });
}

async function ordered() {
  const consumer = await js.consumers.get(stream);
  const found = [];
  for await (const message of await consumer.consume()) {
    found.push(message.seq);
    if (found.length === 20) break;
  }
  say({ ordered: found });
}

async function direct() {
  const fifth = await manager.direct.getMessage(stream, { seq: 5 });
  const last = await manager.direct.getMessage(stream, { last_by_subj: `${stream}.b` });
  say({ fifth: decode(fifth.data), last: last.seq });
}

async function pushed() {
  const consumer = await js.consumers.getPushConsumer(stream, { filter_subjects: `${stream}.a` });
  const found = [];
  for await (const message of await consumer.consume()) {
    found.push(message.seq);
    if (found.length === 10) break;
  }
  say({ pushed: found });
}

const refuses = (attempt) => attempt.then((found) => found === null || found.operation === "DEL", () => true);

async function bucket() {
  const kv = await new Kvm(js).create("js");
  const watcher = await kv.watch();
  const put = await kv.put("colour", "blue");
  const created = await kv.create("size", "1");
  const twice = await refuses(kv.create("size", "1"));
  const updated = await kv.update("size", "2", created);
  const stale = await refuses(kv.update("size", "3", created));
  const value = (await kv.get("size")).string();
  await kv.delete("colour");
  const gone = await refuses(kv.get("colour"));
  const keys = [];
  for await (const key of await kv.keys()) keys.push(key);
  const watched = [];
  for await (const update of watcher) {
    watched.push(`${update.key} ${update.revision}`);
    if (watched.length === 4) break;
  }
  say({ revisions: [put, created, updated], value, keys: keys.sort(), refused: [twice, stale, gone], watched });
  await kv.destroy();
}

async function worked() {
  const consumer = await js.consumers.get(stream, "js-work");
  for await (const message of await consumer.consume()) {
    if (message.seq % 7 === 0 && message.info.deliveryCount === 1) message.nak();
    else say({ worked: message.seq, acked: await message.ackAck({ timeout: ACK_MS }).catch(() => false) });
  }
}

async function followed() {
  const consumer = await js.consumers.get(stream);
  for await (const message of await consumer.consume()) say({ followed: message.seq });
}

if (mode === "work") {
  await manager.consumers.add(stream, {
    durable_name: "js-work", ack_policy: AckPolicy.Explicit, ack_wait: 10_000_000_000, max_ack_pending: 1,
  });
  worked().catch((error) => { console.error(error); process.exit(1); });
  followed().catch((error) => { console.error(error); process.exit(1); });
  say({ ready: true });
  process.stdin.on("end", () => process.exit(0)).resume();
} else {
  await fetched();
  await ordered();
  await direct();
  await pushed();
  await bucket();
  await connection.close();
}
