"""What no error and no output may show: every test's errors, captured output and commands are searched for it."""

TOKEN = "hf_secretsecretsecret"
PASSWORD = "pa55word"
SECRETS = (TOKEN, PASSWORD)


def are_in(text: str) -> bool:
    return any(secret in text for secret in SECRETS)
