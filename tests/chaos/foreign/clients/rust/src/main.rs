// Reads a stream by the JetStream API; one line of JSON for what it has found.
// What all readers do alike is in ../../../../reading.py.
use std::time::Duration;

use async_nats::jetstream::consumer::{pull, push, AckPolicy, Consumer};
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, kv, AckKind, Context, Message};
use async_nats::Error;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{json, Value};
use tokio::io::AsyncReadExt;

const PATIENCE: Duration = Duration::from_secs(30);

fn say(said: Value) {
    println!("{said}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let given: Vec<String> = std::env::args().collect();
    let (mode, name) = (&given[2], &given[3]);
    let client = async_nats::ConnectOptions::new()
        .reconnect_delay_callback(|_| Duration::from_millis(100))
        .connect(given[1].as_str())
        .await?;
    let mut js = jetstream::with_domain(client.clone(), "log");
    js.set_timeout(PATIENCE);
    let stream = js.get_stream(name).await?;
    if mode == "work" {
        return work(&stream).await;
    }
    fetch(&stream).await?;
    ordered(&stream).await?;
    let fifth = stream.direct_get(5).await?;
    let last = stream.direct_get_last_for_subject(format!("{name}.b")).await?;
    say(json!({"fifth": text(&fifth.payload), "last": last.sequence}));
    let inbox = client.new_inbox();
    let pushed = stream
        .create_consumer(push::OrderedConfig {
            deliver_subject: inbox,
            filter_subject: format!("{name}.a"),
            ..Default::default()
        })
        .await?;
    say(json!({"pushed": sequences(pushed.messages().await?.take(10)).await?}));
    bucket(&js).await
}

fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).into_owned()
}

async fn sequences<E>(messages: impl StreamExt<Item = Result<Message, E>>) -> Result<Vec<u64>, Error>
where
    Error: From<E>,
{
    let mut found = Vec::new();
    let mut messages = std::pin::pin!(messages);
    while let Some(message) = messages.next().await {
        found.push(message?.info()?.stream_sequence);
    }
    Ok(found)
}

async fn durable(stream: &Stream, config: pull::Config) -> Result<Consumer<pull::Config>, Error> {
    Ok(stream.create_consumer(pull::Config { ack_policy: AckPolicy::Explicit, ..config }).await?)
}

async fn take(consumer: &Consumer<pull::Config>, count: usize) -> Result<Vec<Message>, Error> {
    let batch = consumer.batch().max_messages(count).expires(PATIENCE).messages().await?;
    batch.try_collect().await
}

async fn fetch(stream: &Stream) -> Result<(), Error> {
    let name = Some("rust-fetch".to_string());
    let config = pull::Config { durable_name: name, ..Default::default() };
    let mut consumer = durable(stream, config).await?;
    let taken = take(&consumer, 4).await?;
    let found: Result<Vec<u64>, Error> =
        taken.iter().map(|each| Ok(each.info()?.stream_sequence)).collect();
    let headers = taken[1].headers.as_ref().ok_or("no headers")?;
    let number = headers.get("Number").map(|each| each.as_str());
    say(json!({"fetched": found?, "subject": taken[1].subject.as_str(), "header": number}));
    taken[0].double_ack().await?;
    taken[1].ack_with(AckKind::Nak(None)).await?;
    taken[2].ack_with(AckKind::Term).await?;
    let again = take(&consumer, 1).await?.remove(0);
    let told = again.info()?;
    say(json!({"again": told.stream_sequence, "delivered": told.delivered}));
    again.double_ack().await?;
    taken[3].double_ack().await?;
    let info = consumer.info().await?;
    let floor = info.ack_floor.stream_sequence;
    say(json!({"floor": floor, "open": info.num_ack_pending, "pending": info.num_pending}));
    Ok(())
}

async fn ordered(stream: &Stream) -> Result<(), Error> {
    let consumer = stream.create_consumer(pull::OrderedConfig::default()).await?;
    say(json!({"ordered": sequences(consumer.messages().await?.take(20)).await?}));
    Ok(())
}

async fn bucket(js: &Context) -> Result<(), Error> {
    let config = kv::Config { bucket: "rust".to_string(), ..Default::default() };
    let kv = js.create_key_value(config).await?;
    let watcher = kv.watch_all().await?;
    let put = kv.put("colour", "blue".into()).await?;
    let created = kv.create("size", "1".into()).await?;
    let twice = kv.create("size", "1".into()).await.is_err();
    let updated = kv.update("size", "2".into(), created).await?;
    let stale = kv.update("size", "3".into(), created).await.is_err();
    let value = kv.get("size").await?.ok_or("no value")?;
    kv.delete("colour").await?;
    let gone = kv.get("colour").await?.is_none();
    let mut keys: Vec<String> = kv.keys().await?.try_collect().await?;
    keys.sort();
    let updates: Vec<kv::Entry> = watcher.take(4).try_collect().await?;
    let watched: Vec<String> =
        updates.iter().map(|each| format!("{} {}", each.key, each.revision)).collect();
    say(json!({
        "revisions": [put, created, updated], "value": text(&value), "keys": keys,
        "refused": [twice, stale, gone], "watched": watched,
    }));
    js.delete_key_value("rust").await?;
    Ok(())
}

// Acknowledges each message of a durable consumer, and follows in order, until the input ends.
async fn work(stream: &Stream) -> Result<(), Error> {
    let config = pull::Config {
        durable_name: Some("rust-work".to_string()),
        ack_wait: Duration::from_secs(10),
        max_ack_pending: 1,
        ..Default::default()
    };
    let consumer = durable(stream, config).await?;
    let follower = stream.create_consumer(pull::OrderedConfig::default()).await?;
    say(json!({"ready": true}));
    let following = follow(follower);
    let working = acknowledge(consumer);
    let mut rest = Vec::new();
    let mut input = tokio::io::stdin();
    tokio::select! {
        ended = following => ended,
        ended = working => ended,
        _ = input.read_to_end(&mut rest) => std::process::exit(0),
    }
}

async fn follow(consumer: Consumer<pull::OrderedConfig>) -> Result<(), Error> {
    let mut messages = consumer.messages().await?;
    while let Some(message) = messages.next().await {
        match message {
            Ok(message) => say(json!({"followed": message.info()?.stream_sequence})),
            Err(error) => eprintln!("ordered: {error}"),
        }
    }
    Err("the ordered consumer has ended".into())
}

async fn acknowledge(consumer: Consumer<pull::Config>) -> Result<(), Error> {
    loop {
        let mut messages = consumer.messages().await?;
        while let Some(message) = messages.next().await {
            let message = match message {
                Ok(message) => message,
                Err(error) => {
                    eprintln!("work: {error}");
                    break;
                }
            };
            let (sequence, delivered) = {
                let told = message.info()?;
                (told.stream_sequence, told.delivered)
            };
            if sequence % 7 == 0 && delivered == 1 {
                message.ack_with(AckKind::Nak(None)).await?;
                continue;
            }
            let acked = tokio::time::timeout(Duration::from_secs(2), message.double_ack()).await;
            say(json!({"worked": sequence, "acked": matches!(acked, Ok(Ok(())))}));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
