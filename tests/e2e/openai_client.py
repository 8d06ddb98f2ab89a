#!/usr/bin/env python3
"""Checks a running server with the official `openai` Python client (pip install openai).

    tests/e2e/openai_client.py --base-url http://127.0.0.1:8000/v1 [--api-key KEY] [--model NAME]

Prints one line per check and exits 1 if any failed. Works against any model: it checks forms and relations between
answers, not what a model says.
"""
import argparse
import sys

import openai

MESSAGES = [{"role": "user", "content": "Say hello."}]
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}
FORCED = {**NO_THINKING, "ignore_eos": True, "min_tokens": 24}


class Checks:
    def __init__(self, client, model):
        self.client = client
        self.model = model

    def chat(self, **more):
        fields = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "extra_body": FORCED}
        fields.update(more)
        return self.client.chat.completions.create(model=self.model, **fields)

    def completion(self, **more):
        fields = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
        fields.update(more)
        return self.client.completions.create(model=self.model, **fields)

    def check_models(self):
        models = list(self.client.models.list())
        assert any(m.id == self.model for m in models), models
        assert self.client.models.retrieve(self.model).id == self.model

    def check_chat(self):
        answer = self.chat()
        choice = answer.choices[0]
        assert answer.object == "chat.completion" and choice.message.role == "assistant"
        assert choice.message.content and choice.finish_reason == "length"
        assert answer.usage.completion_tokens == 24
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
        assert self.chat().choices[0].message.content == choice.message.content, "temperature 0 is not repeatable"

    def check_thinking(self):
        answer = self.chat(extra_body={"ignore_eos": True, "min_tokens": 24}, reasoning_effort="low")
        message = answer.choices[0].message
        assert (getattr(message, "reasoning_content", None) or message.content), message

    def check_chat_stream(self):
        whole = self.chat().choices[0].message.content
        events = list(self.chat(stream=True, stream_options={"include_usage": True}))
        assert events[0].choices[0].delta.role == "assistant"
        text = "".join(c.delta.content or "" for e in events for c in e.choices)
        assert text == whole, (text, whole)
        assert [c.finish_reason for e in events for c in e.choices][-1] == "length"
        assert not events[-1].choices and events[-1].usage.completion_tokens == 24
        assert len(events) > 5, "the stream came in one piece"

    def check_chat_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=5).choices[0].logprobs.content
        assert len(content) == 24
        for position in content:
            assert position.logprob <= 0 and len(position.top_logprobs) == 5
            values = [top.logprob for top in position.top_logprobs]
            assert values == sorted(values, reverse=True)
            assert abs(position.logprob - values[0]) < 1e-6, "greedy did not take the likeliest token"
        streamed = [p for e in self.chat(logprobs=True, top_logprobs=5, stream=True) for c in e.choices if c.logprobs
                    for p in c.logprobs.content]
        assert [p.logprob for p in streamed] == [p.logprob for p in content]

    def check_stop(self):
        whole = self.chat().choices[0].message.content
        middle = next((whole[i] for i in range(2, len(whole)) if whole[i].isalnum()), None)
        assert middle, whole
        stopped = self.chat(stop=[middle, "\0never"], extra_body={**NO_THINKING, "ignore_eos": True}).choices[0]
        assert stopped.finish_reason == "stop" and stopped.stop_reason == middle
        assert stopped.message.content == whole[: whole.index(middle)], (stopped.message.content, whole, middle)

    def check_seed(self):
        def text(seed, **more):
            return self.chat(temperature=1.0, seed=seed, **more).choices[0].message.content

        assert text(7) == text(7)
        assert len({text(seed) for seed in range(6)}) > 1
        streamed = "".join(c.delta.content or "" for e in self.chat(temperature=1.0, seed=7, stream=True)
                           for c in e.choices)
        assert streamed == text(7)
        extra = {**FORCED, "top_k": 1}
        assert text(1, extra_body=extra) == text(2, extra_body=extra), "top_k 1 is not greedy"

    def check_choices(self):
        answer = self.chat(n=3, temperature=1.0, seed=5)
        assert [c.index for c in answer.choices] == [0, 1, 2]
        assert answer.choices[0].message.content == self.chat(temperature=1.0, seed=5).choices[0].message.content
        assert answer.usage.completion_tokens == 72

    def check_completions(self):
        answer = self.completion(logprobs=2)
        choice = answer.choices[0]
        assert answer.object == "text_completion" and choice.text and choice.finish_reason == "length"
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 12
        assert choice.logprobs.text_offset[0] == 0
        streamed = "".join(c.text for e in self.completion(stream=True) for c in e.choices)
        assert streamed == choice.text

    def check_prompt_forms(self):
        ids = self.completion(extra_body={"ignore_eos": True, "return_token_ids": True}).choices[0].prompt_token_ids
        text = self.completion().choices[0].text
        assert self.completion(prompt=ids).choices[0].text == text
        both = self.completion(prompt=[ids, ids]).choices
        assert [c.index for c in both] == [0, 1] and both[0].text == both[1].text == text
        assert len(self.completion(prompt=["a", "b", "c"], n=2).choices) == 6

    def check_errors(self):
        for fields, kind, param in [
            ({"temperature": -1}, openai.BadRequestError, "temperature"),
            ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
            ({"max_tokens": 10**9}, openai.BadRequestError, "max_tokens"),
            ({"messages": []}, openai.BadRequestError, "messages"),
            ({"logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias"),
        ]:
            try:
                self.chat(**fields)
            except kind as error:
                assert error.param == param, (fields, error)
            else:
                raise AssertionError(f"{fields} was not refused")
        try:
            self.client.chat.completions.create(model="no-such-model", messages=MESSAGES)
        except openai.NotFoundError as error:
            assert error.code == "model_not_found"
        else:
            raise AssertionError("an unknown model was not refused")

    def check_tools(self):
        tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
        must = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "look_up"}}}
        whole = self.chat(**must).choices[0].message
        assert [call.function.name for call in whole.tool_calls] == ["look_up"], whole
        events = [event for event in self.chat(**must, stream=True) if event.choices]
        calls = [call for event in events for call in event.choices[0].delta.tool_calls or []]
        assert calls[0].function.name == "look_up" and calls[0].id, calls
        assert "".join(c.function.arguments for c in calls) == whole.tool_calls[0].function.arguments
        answered = MESSAGES + [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "nothing"},
        ]
        assert self.chat(messages=answered, tools=[tool]).choices[0].message.role == "assistant"

    def check_leaving_early(self):
        stream = self.chat(stream=True, max_tokens=200, extra_body={**NO_THINKING, "ignore_eos": True})
        for _, _event in zip(range(3), stream):
            pass
        stream.close()
        self.check_chat()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--base-url", required=True)
    arguments.add_argument("--api-key", default="none")
    arguments.add_argument("--model")
    given = arguments.parse_args()
    client = openai.OpenAI(base_url=given.base_url, api_key=given.api_key, max_retries=0, timeout=120)
    model = given.model or next(iter(client.models.list())).id
    checks = Checks(client, model)
    failed = 0
    for name in [name for name in dir(checks) if name.startswith("check_")]:
        try:
            getattr(checks, name)()
            print(f"ok    {name[6:]}")
        except Exception as error:  # every check runs, whatever one of them meets
            failed += 1
            print(f"FAIL  {name[6:]}: {type(error).__name__}: {error}")
    print(f"{'FAILED' if failed else 'passed'}: openai {openai.__version__}, model {model}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
