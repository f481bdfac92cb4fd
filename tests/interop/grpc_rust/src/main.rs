//! The official Rust client of RocketMQ 5: what it does is told in grpc_python/peer.py.
//!
//! It has no push consumer, no recall, and no change of the invisible time.

use std::io::stdin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::time::sleep;

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

fn options() -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(std::env::args().nth(1).unwrap());
    options.set_enable_tls(false);
    options
}

fn failed(what: &str, error: impl std::fmt::Debug) {
    let text = format!("{error:?}").replace(['"', '\\', '\n'], " ");
    println!("{{\"event\": \"failed\", \"what\": \"{what}\", \"error\": \"{text}\"}}");
}

async fn receive(by: &str, topic: &str) {
    let mut settings = SimpleConsumerOption::default();
    settings.set_consumer_group(format!("GID_{by}"));
    settings.set_topics(vec![topic]);
    settings.set_logging_format(LoggingFormat::Json);
    let mut consumer = SimpleConsumer::new(settings, options()).unwrap();
    consumer.start().await.unwrap();
    let all = FilterExpression::new(FilterType::Tag, "*");
    loop {
        match consumer.receive(topic, &all).await {
            Ok(messages) => {
                for message in messages {
                    let body = String::from_utf8_lossy(message.body());
                    let attempt = message.delivery_attempt();
                    println!(
                        "{{\"event\": \"got\", \"by\": \"{by}\", \"body\": \"{body}\", \
                         \"attempt\": {attempt}, \"ms\": {}}}",
                        now_ms()
                    );
                    if let Err(error) = consumer.ack(&message).await {
                        failed("ack", error);
                    }
                }
            }
            Err(error) => {
                failed("receive", error);
                sleep(Duration::from_millis(500)).await;
            }
        }
    }
}

fn plain(topic: &str, body: String) -> MessageBuilder {
    MessageBuilder::builder().set_topic(topic).set_body(body.into_bytes())
}

fn read_line() {
    stdin().read_line(&mut String::new()).unwrap();
}

#[tokio::main]
async fn main() {
    // The client's log in JSON needs the directory.
    std::fs::create_dir_all("logs").unwrap();
    for (by, topic) in [
        ("simple", "T"),
        ("delay", "T_delay"),
        ("transaction", "T_transaction"),
        ("fifo", "T_fifo"),
    ] {
        tokio::spawn(receive(by, topic));
    }
    let mut settings = ProducerOption::default();
    settings.set_topics(vec!["T", "T_delay", "T_fifo", "T_transaction"]);
    settings.set_logging_format(LoggingFormat::Json);
    let commit = Box::new(|_, _| TransactionResolution::COMMIT);
    let mut producer =
        Producer::new_transaction_producer(settings, options(), commit).unwrap();
    producer.start().await.unwrap();
    for number in 0..20 {
        let message = plain("T", format!("plain {number}"))
            .set_tag("a")
            .set_keys(vec![format!("key-{number}")]);
        producer.send(message.build().unwrap()).await.unwrap();
    }
    for number in 0..10 {
        let name = if number == 4 { "fails at step" } else { "step" };
        let body = format!("{name} {number}").into_bytes();
        let message = MessageBuilder::fifo_message_builder("T_fifo", body, "ride-7");
        producer.send(message.build().unwrap()).await.unwrap();
    }
    let due_s = (now_ms() / 1000) as i64 + 3;
    let body = format!("due {}", due_s * 1000).into_bytes();
    let late = MessageBuilder::delay_message_builder("T_delay", body, due_s);
    producer.send(late.build().unwrap()).await.unwrap();
    for name in ["committed", "rolled back", "undecided"] {
        let half = MessageBuilder::transaction_message_builder("T_transaction", name.into());
        let transaction = producer.send_transaction_message(half.build().unwrap()).await.unwrap();
        match name {
            "committed" => transaction.commit().await.unwrap(),
            "rolled back" => transaction.rollback().await.unwrap(),
            _ => {}
        }
    }
    println!("{{\"event\": \"sent\"}}");
    tokio::task::spawn_blocking(read_line).await.unwrap();
    for number in 0..10 {
        let end_ms = now_ms() + 60_000;
        loop {
            let message = plain("T", format!("later {number}")).build().unwrap();
            match producer.send(message).await {
                Ok(_) => break,
                Err(error) => failed("send", error),
            }
            assert!(now_ms() < end_ms);
            sleep(Duration::from_millis(500)).await;
        }
    }
    println!("{{\"event\": \"sent\"}}");
    tokio::task::spawn_blocking(read_line).await.unwrap();
    std::process::exit(0);
}
