// The official Node client of RocketMQ 5: what it does is told in grpc_python/peer.py.
const { once } = require('node:events');
const { createInterface } = require('node:readline');
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require(
  'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb',
);

const shared = { endpoints: process.argv[2], namespace: '' };
const lines = createInterface({ input: process.stdin });
const tell = (event, fields) => console.log(JSON.stringify({ event, ...fields }));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function got(by, message) {
  const body = message.body.toString();
  tell('got', { by, body, attempt: message.deliveryAttempt, ms: Date.now() });
  return body;
}

async function push(by, topic) {
  const seen = new Set();
  const consumer = new PushConsumer({
    ...shared,
    consumerGroup: `GID_${by}`,
    subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(message) {
        const body = got(by, message);
        const fails = body.startsWith('fails') && !seen.has(body);
        seen.add(body);
        return body === 'poison' || fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
}

async function receive() {
  const consumer = new SimpleConsumer({
    ...shared,
    consumerGroup: 'GID_simple',
    subscriptions: new Map([['T', '*']]),
    awaitDuration: 5000,
  });
  await consumer.startup();
  for (;;) {
    try {
      for (const message of await consumer.receive(32, 15_000)) {
        got('simple', message);
        await consumer.ack(message);
      }
    } catch (error) {
      tell('failed', { what: 'receive', error: String(error) });
      await sleep(500);
    }
  }
}

async function main() {
  // One topic each: with several, this client misses settings that come before its last route, as
  // from Apache's proxy, and starts 5 minutes later, when it tells its own again.
  await push('push', 'T');
  await push('delay', 'T_delay');
  await push('transaction', 'T_transaction');
  await push('fifo', 'T_fifo');
  receive();
  // Check-backs go to producers that name the topic; other routes are asked for at the first send.
  const topics = ['T_transaction'];
  const checker = { check: async () => TransactionResolution.COMMIT };
  const producer = new Producer({ ...shared, topics, checker });
  await producer.startup();
  for (let number = 0; number < 20; number++) {
    const body = Buffer.from(`plain ${number}`);
    await producer.send({ topic: 'T', tag: 'a', keys: [`key-${number}`], body });
  }
  await producer.send({ topic: 'T', body: Buffer.from('fails once') });
  await producer.send({ topic: 'T', body: Buffer.from('poison') });
  for (let number = 0; number < 10; number++) {
    const name = number === 4 ? `fails at step ${number}` : `step ${number}`;
    await producer.send({ topic: 'T_fifo', messageGroup: 'ride-7', body: Buffer.from(name) });
  }
  const due = Math.floor(Date.now() / 1000) * 1000 + 3000;
  const late = { topic: 'T_delay', deliveryTimestamp: new Date(due) };
  await producer.send({ ...late, body: Buffer.from(`due ${due}`) });
  const recalled = await producer.send({ ...late, body: Buffer.from('recalled') });
  await producer.recallMessage('T_delay', recalled.recallHandle);
  for (const name of ['committed', 'rolled back', 'undecided']) {
    const transaction = producer.beginTransaction();
    await producer.send({ topic: 'T_transaction', body: Buffer.from(name) }, transaction);
    if (name === 'committed') await transaction.commit();
    if (name === 'rolled back') await transaction.rollback();
  }
  tell('sent');
  await once(lines, 'line');
  const end = Date.now() + 60_000;
  for (let number = 0; number < 10; ) {
    try {
      await producer.send({ topic: 'T', body: Buffer.from(`later ${number}`) });
      number++;
    } catch (error) {
      tell('failed', { what: 'send', error: String(error) });
      if (Date.now() > end) throw error;
      await sleep(500);
    }
  }
  tell('sent');
  await once(lines, 'line');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
