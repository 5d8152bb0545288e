"""Continues ids with a checkpoint, all at once, then as they come: generate.py CHECKPOINT ID ..."""

import asyncio
import sys

import megatron_cpp as mg

checkpoint = sys.argv[1]
prompt = [int(word) for word in sys.argv[2:]]

with mg.Model.from_pretrained(checkpoint) as model:
    for text in model.generate([prompt, prompt[::-1]], max_new_tokens=5, top_k=1):
        print(text.tokens, text.finish)

    async def stream():
        async with mg.AsyncEngine(model) as engine:
            async for event in engine.stream(prompt, max_new_tokens=5, top_k=1):
                print(event.token, end=" ", flush=True)

    asyncio.run(stream())
    print()
