// ali-ons, the JavaScript client, as its users use it: `node peer.js nameServer=... check=... topic=...`.
// Each check is a function that throws what went wrong; what was found is told as a line of JSON.
'use strict';

const { createRequire } = require('module');
const path = require('path');

const options = Object.fromEntries(
  process.argv.slice(2).map(pair => [ pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1) ]));
const { Consumer, Message, Producer } = createRequire(path.join(options.modules, 'x.js'))('ali-ons');
const quiet = { info() {}, warn() {}, error() {}, debug() {} };
const WAIT_MS = 100000;
let count = 0;

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function client(more) {
  count++;
  return {
    nameSrv: options.nameServer, httpclient: {}, logger: quiet,
    accessKeyId: options.accessKey || '', accessKeySecret: options.secretKey || '',
    instanceName: `js-${process.pid}-${count}`, ...more,
  };
}

async function produce(messages, more) {
  const producer = new Producer(client({ producerGroup: 'GID_js_producer', ...more }));
  await producer.ready();
  const results = [];
  for (const message of messages) {
    const result = await producer.send(message);
    if (result.sendStatus !== 'SEND_OK') throw new Error(`answered ${JSON.stringify(result)}`);
    results.push(result);
  }
  await producer.close();
  return results;
}

async function consume(topic, expression, listener, more) {
  const got = [];
  const consumer = new Consumer(client({
    consumerGroup: `GID_${topic}`, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...more,
  }));
  // What it says of a listener that failed is not of interest: that is what a check is about.
  consumer.on('error', () => {});
  consumer.subscribe(topic, expression, async message => {
    got.push(message);
    if (listener) return await listener(message);
  });
  await consumer.ready();
  return { got, close: () => consumer.close() };
}

async function expect(got, bodies) {
  const sorted = () => got.map(message => message.body.toString()).sort();
  for (const end = Date.now() + WAIT_MS; got.length < bodies.length && Date.now() < end;) await sleep(20);
  await sleep(500);
  const [ wanted, found ] = [ [ ...bodies ].sort(), sorted() ];
  if (JSON.stringify(wanted) !== JSON.stringify(found)) throw new Error(`expected ${wanted}, got ${found}`);
}

function numbered(topic, number) {
  const bodies = Array.from({ length: number }, (_, index) => `m-${index}`);
  return [ bodies.map((body, index) => new Message(topic, 'ABC'[index % 3], body)), bodies ];
}

const checks = {
  // Each message keeps its id, place, keys, tags and properties.
  async send(topic) {
    const [ messages, bodies ] = numbered(topic, 30);
    messages.forEach((message, index) => { message.keys = [ `k${index}` ]; message.properties.number = `${index}`; });
    const results = await produce(messages);
    const { got, close } = await consume(topic, '*');
    await expect(got, bodies);
    for (const message of got) {
      const index = Number(message.properties.number);
      const sent = results[index];
      const expected = [ `m-${index}`, sent.msgId, sent.messageQueue.queueId, sent.queueOffset, `k${index}`, 'ABC'[index % 3] ];
      const found = [ message.body.toString(), message.msgId, message.queueId, message.queueOffset, message.keys, message.tags ];
      if (String(expected) !== String(found)) throw new Error(`sent as ${expected}, came as ${found}`);
    }
    await close();
  },
  async compressed(topic) {
    const body = 'compress me '.repeat(10000);
    await produce([ new Message(topic, body) ]);
    const { got, close } = await consume(topic, '*');
    await expect(got, [ body ]);
    await close();
  },
  async tags(topic) {
    await produce(numbered(topic, 9)[0]);
    const { got, close } = await consume(topic, 'A || C');
    await expect(got, [ 'm-0', 'm-2', 'm-3', 'm-5', 'm-6', 'm-8' ]);
    await close();
  },
  async sql92(topic) {
    const [ messages ] = numbered(topic, 9);
    messages.forEach((message, index) => { message.properties.number = `${index}`; });
    await produce(messages);
    const { got, close } = await consume(topic, { expressionType: 'SQL92', subString: 'number > 5 OR number = 2' });
    await expect(got, [ 'm-2', 'm-6', 'm-7', 'm-8' ]);
    await close();
  },
  async delay(topic) {
    const { got, close } = await consume(topic, '*');
    const message = new Message(topic, 'late');
    message.delayTimeLevel = 2;
    const sent = Date.now();
    await produce([ message ]);
    await expect(got, [ 'late' ]);
    const waited = Number(got[0].storeTimestamp) - sent;
    if (waited < 4900 || waited > 8000) throw new Error(`level 2, 5 s, took ${waited} ms`);
    await close();
  },
  async orderly(topic) {
    const [ messages, bodies ] = numbered(topic, 40);
    messages.forEach((message, index) => { message.shardingKey = `order-${index % 4}`; });
    await produce(messages);
    const { got, close } = await consume(topic, '*');
    await expect(got, bodies);
    const last = {};
    for (const message of got) {
      const index = Number(message.body.toString().slice(2));
      if (last[index % 4] > index) throw new Error(`${index} came after ${last[index % 4]}`);
      last[index % 4] = index;
    }
    const queues = new Set(got.map(message => `${Number(message.body.toString().slice(2)) % 4} in ${message.queueId}`));
    if (queues.size !== 4) throw new Error(`keys went to queues ${[ ...queues ]}`);
    await close();
  },
  async broadcast(topic) {
    const one = await consume(topic, '*', null, { isBroadcast: true });
    const other = await consume(topic, '*', null, { isBroadcast: true });
    const [ messages, bodies ] = numbered(topic, 12);
    await produce(messages);
    await expect(one.got, bodies);
    await expect(other.got, bodies);
    await one.close();
    await other.close();
  },
  // Who comes next in a group begins where the last one ended.
  async resume(topic) {
    const [ messages, bodies ] = numbered(topic, 12);
    await produce(messages);
    const first = await consume(topic, '*');
    await expect(first.got, bodies);
    await first.close();
    await produce([ new Message(topic, 'late') ]);
    const next = await consume(topic, '*');
    await expect(next.got, [ 'late' ]);
    await next.close();
  },
  async retry(topic) {
    await produce([ new Message(topic, 'again') ]);
    const { got, close } = await consume(topic, '*', message => (message.reconsumeTimes ? undefined : Consumer.ACTION_RETRY));
    await expect(got, [ 'again', 'again' ]);
    const times = got.map(message => message.reconsumeTimes);
    if (String(times) !== '0,1') throw new Error(`came ${times} times again`);
    await close();
  },
  // The caller looks for it among the dead letters of the group.
  async 'dead-letters'(topic) {
    await produce([ new Message(topic, 'dead') ]);
    // Of a message that comes again, 3.12.0 loses what the listener returns, and not what it throws.
    const fail = () => { throw new Error('not this one'); };
    const { got, close } = await consume(topic, '*', fail, { maxReconsumeTimes: 1 });
    await expect(got, [ 'dead', 'dead' ]);
    await sleep(1000);
    await close();
  },
  // The caller has made the topic under its whole name, SPACE%NAME.
  async namespace(topic) {
    const [ messages, bodies ] = numbered(topic, 8);
    await produce(messages, { namespace: 'SPACE' });
    const { got, close } = await consume(topic, '*', null, { namespace: 'SPACE' });
    await expect(got, bodies);
    await close();
  },
};

(async () => {
  let failure = null;
  try {
    await checks[options.check](options.topic);
  } catch (error) {
    failure = String(error && error.stack || error);
  }
  console.log(JSON.stringify({ event: 'checked', failure }));
  process.exit(0);
})();
