// Publishes numbered messages until its standard input ends; one line of JSON for each answer.
// What all four publishers do alike is in ../../programs.py.
import { connect, createInbox, ErrorCode, StringCodec } from "nats";

const PACE_MS = 10, PATIENCE_MS = 2500, PAUSE_MS = 100;
const [servers, mode, ...subjects] = process.argv.slice(2);
const codec = StringCodec();
const say = (line) => console.log(JSON.stringify(line));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let ended = false;
process.stdin.on("end", () => { ended = true; }).resume();

const connection = await connect({
  servers: servers.split(","), maxReconnectAttempts: -1, reconnectTimeWait: PAUSE_MS,
});
const stream = connection.jetstream({ timeout: PATIENCE_MS });
const inbox = createInbox();
connection.subscribe(`${inbox}.*`, {
  callback: (error, message) => {
    if (error) throw error;
    const number = Number(message.subject.split(".").pop());
    if (message.headers?.code === 503) say({ number, no_responders: true });
    else say({ number, answer: codec.decode(message.data) });
  },
});

// One attempt at a message with an id.
async function stored(number, subject, id, value) {
  try {
    const ack = await stream.publish(subject, value, { msgID: id });
    say({ number, stream: ack.stream, seq: ack.seq, duplicate: ack.duplicate });
    return true;
  } catch (error) {
    // As the library has it: an answer with the code 503 looks like "no responders", too.
    if (error.code === ErrorCode.NoResponders) say({ number, no_responders: true });
    else if (error.api_error) say({ number, ...error.api_error });
    else say({ number, error: String(error.message) });
    return false;
  }
}

let number = 0;
for (; !ended; number++) {
  await sleep(PACE_MS);
  const subject = subjects[number % subjects.length];
  const id = `${subject} ${number}`;
  const value = codec.encode(`${id} \u2603`);
  if (mode === "once") {
    connection.publish(subject, value, { reply: `${inbox}.${number}` });
  } else {
    while (!await stored(number, subject, id, value)) await sleep(PAUSE_MS);
  }
}
await sleep(PATIENCE_MS);
say({ sent: number });
await connection.close();
