// Sends ten messages to T, and prints what a simple and a push consumer get of them.
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require(
  `${process.argv[3]}/node_modules/rocketmq-client-nodejs`,
);

const COUNT = 10;
const endpoints = process.argv[2];
const end = Date.now() + 60_000;

async function main() {
  const pushed = new Set();
  const push = new PushConsumer({
    endpoints,
    namespace: '',
    consumerGroup: 'GID_js_push',
    subscriptions: new Map([['T', '*']]),
    messageListener: {
      async consume(message) {
        pushed.add(message.body.toString());
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await push.startup();
  const producer = new Producer({ endpoints, namespace: '', topics: ['T'] });
  await producer.startup();
  for (let number = 0; number < COUNT; number++) {
    await producer.send({ topic: 'T', tag: 'a', body: Buffer.from(`js ${number}`) });
  }
  const simple = new SimpleConsumer({
    endpoints,
    namespace: '',
    consumerGroup: 'GID_js_simple',
    subscriptions: new Map([['T', '*']]),
    awaitDuration: 5000,
  });
  await simple.startup();
  const received = new Set();
  while (received.size < COUNT && Date.now() < end) {
    for (const message of await simple.receive(16, 15_000)) {
      received.add(message.body.toString());
      await simple.ack(message);
    }
  }
  while (pushed.size < COUNT && Date.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  console.log(`simple ${received.size} push ${pushed.size}`);
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
