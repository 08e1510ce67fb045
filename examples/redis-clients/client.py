"""Asks a service with redis-py: client.py PORT PROTOCOL NAME. PROTOCOL is 2 or 3, NAME the user who is limited.

It prints the results of its commands as a list of JSON, errors as "error: text". The clients in other languages print the same.
"""
import json
import sys

import redis

port, protocol, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
client = redis.Redis(port=port, password="open", protocol=protocol, decode_responses=True)
results = []


def add(call, *args):
    try:
        results.append(call(*args))
    except redis.RedisError as err:
        results.append(f"error: {err}")


def transaction():
    pipe = client.pipeline(transaction=True)
    pipe.ping()
    return pipe.execute()


def subscription():
    channel = client.pubsub()
    try:
        channel.subscribe("news")
        return channel.get_message(timeout=5)
    finally:
        channel.close()


add(lambda: "PONG" if client.ping() else "")
for _ in range(3):
    add(client.execute_command, "RATELIMIT", "api", "user", name)
add(client.execute_command, "CL.THROTTLE", name, 15, 30, 60)
add(client.execute_command, "RATELIMIT.TREE", "limits", 1, "user", name, "trade")
pipeline = client.pipeline(transaction=False)
for _ in range(4):
    pipeline.execute_command("RATELIMIT", "api", "user", name + " in a pipeline")
results.extend(pipeline.execute())
add(transaction)
add(subscription)
add(client.get, "foo")
add(client.echo, "still here")
print(json.dumps(results))
